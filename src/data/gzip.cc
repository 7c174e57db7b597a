#include "src/data/gzip.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <new>
#include <utility>

#include "src/data/data_file.h"

namespace lockstep {
namespace {

// zlib counts in 32 bits, so larger spans are passed in pieces.
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;

uInt at_once(std::size_t bytes) {
  return static_cast<uInt>(std::min(bytes, kMostAtOnce));
}

}  // namespace

bool is_gzip(std::span<const std::byte> contents) {
  return contents.size() >= 2 && contents[0] == std::byte{0x1f} &&
         contents[1] == std::byte{0x8b};
}

void GzipReader::EndStream::operator()(z_stream_s* stream) const {
  inflateEnd(stream);
  delete stream;
}

GzipReader::GzipReader(std::span<const std::byte> contents, std::string file)
    : contents_(contents), file_(std::move(file)) {
  auto stream = std::make_unique<z_stream>();
  constexpr int kGzipWrapper = 16;
  if (inflateInit2(stream.get(), MAX_WBITS + kGzipWrapper) != Z_OK)
    throw std::bad_alloc();
  stream_.reset(stream.release());
}

std::size_t GzipReader::read(std::span<std::uint8_t> out) {
  std::size_t written = 0;
  while (written < out.size() && !finished_) {
    const auto input = contents_.subspan(consumed_);
    const auto output = out.subspan(written);
    // zlib does not write through next_in.
    stream_->next_in =
        reinterpret_cast<Bytef*>(const_cast<std::byte*>(input.data()));
    stream_->avail_in = at_once(input.size());
    stream_->next_out = output.data();
    stream_->avail_out = at_once(output.size());
    const int status = inflate(stream_.get(), Z_NO_FLUSH);
    const std::size_t step = at_once(output.size()) - stream_->avail_out;
    consumed_ += at_once(input.size()) - stream_->avail_in;
    produced_ += step;
    written += step;
    handle(status);
  }
  return written;
}

void GzipReader::handle(int status) {
  if (status == Z_OK) return;
  if (status == Z_STREAM_END) return end_member();
  if (status == Z_MEM_ERROR) throw std::bad_alloc();
  if (status == Z_BUF_ERROR)
    throw malformed_file(
        {.file = file_,
         .problem = "the gzip data is truncated",
         .offset = consumed_,
         .expected = "more compressed data",
         .found = fmt::format(
             "the end of the file, after {} decompressed bytes", produced_)});
  throw malformed_file({.file = file_,
                        .problem = "the gzip data is corrupt",
                        .offset = consumed_,
                        .expected = "valid compressed data",
                        .found = stream_->msg != nullptr
                                     ? stream_->msg
                                     : "an unknown dictionary"});
}

// A gzip file may consist of several members.
void GzipReader::end_member() {
  const auto rest = contents_.subspan(consumed_);
  if (rest.empty()) {
    finished_ = true;
    return;
  }
  if (!is_gzip(rest))
    throw malformed_file({.file = file_,
                          .problem = "something follows the gzip data",
                          .offset = consumed_,
                          .expected = "the end of the file",
                          .found = fmt::format("{} more bytes", rest.size())});
  inflateReset(stream_.get());
}

}  // namespace lockstep
