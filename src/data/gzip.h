// Decompresses a gzip file (RFC 1952) that lies in memory, piece by piece.
//
// Threads: single-threaded.
// Errors:  InvalidArgument for data that is truncated, corrupt or followed by
//          something else, with the offset in the compressed file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct z_stream_s;

namespace lockstep {

// Whether `contents` starts as a gzip file does.
bool is_gzip(std::span<const std::byte> contents);

class GzipReader {
 public:
  // Deflate cannot shrink anything to less than 1/1032 of its size
  // (https://zlib.net/zlib_tech.html), so a file of n bytes holds at most
  // n * kMostExpansion.
  static constexpr std::size_t kMostExpansion = 1032;

  // `contents` must outlive the reader; `file` names the file in messages.
  GzipReader(std::span<const std::byte> contents, std::string file);

  // Fills `out` and returns out.size(), or fewer at the end of the data. The
  // reader has then verified checksum and length.
  std::size_t read(std::span<std::uint8_t> out);

 private:
  struct EndStream {
    void operator()(z_stream_s* stream) const;
  };

  void handle(int status);
  void end_member();

  std::span<const std::byte> contents_;
  std::string file_;
  std::unique_ptr<z_stream_s, EndStream> stream_;
  std::size_t consumed_ = 0;  // of contents_
  std::size_t produced_ = 0;
  bool finished_ = false;
};

}  // namespace lockstep
