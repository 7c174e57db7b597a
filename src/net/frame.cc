#include "src/net/frame.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include "lockstep/base/error.h"
#include "src/net/byte_stream.h"

namespace lockstep {
namespace {

constexpr std::size_t kKeptBytes = std::size_t{1} << 18;

}  // namespace

std::vector<std::byte> make_frame(std::span<const std::byte> payload) {
  LOCKSTEP_CHECK(payload.size() <= std::numeric_limits<std::uint32_t>::max(),
                 "a frame's length has 32 bits");
  std::vector<std::byte> frame;
  frame.reserve(kFrameHeaderBytes + payload.size());
  ByteWriter writer(frame);
  writer.number(static_cast<std::uint32_t>(payload.size()));
  writer.bytes(payload);
  return frame;
}

void FrameReader::append(std::span<const std::byte> arrived) {
  // Drops bytes here and not in next_frame(), so that views stay valid until
  // now.
  buffer_.erase(buffer_.begin(),
                buffer_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
  // One large frame must not keep its memory for the connection's lifetime.
  if (buffer_.empty() && buffer_.capacity() > kKeptBytes)
    buffer_.shrink_to_fit();
  buffer_.insert(buffer_.end(), arrived.begin(), arrived.end());
}

std::optional<std::span<const std::byte>> FrameReader::next_frame() {
  const auto waiting = std::span<const std::byte>(buffer_).subspan(taken_);
  if (waiting.size() < kFrameHeaderBytes) return std::nullopt;
  const std::size_t length = ByteReader(waiting).number<std::uint32_t>();
  if (length > max_frame_bytes_)
    throw NetworkError(
        fmt::format("a frame says it has {} bytes; at most {} are allowed here",
                    length, max_frame_bytes_));
  if (waiting.size() < kFrameHeaderBytes + length) return std::nullopt;
  taken_ += kFrameHeaderBytes + length;
  return waiting.subspan(kFrameHeaderBytes, length);
}

std::optional<std::span<const std::byte>> FrameReader::next_bytes(
    std::size_t count) {
  if (buffered_bytes() < count) return std::nullopt;
  const auto front = std::span<const std::byte>(buffer_).subspan(taken_, count);
  taken_ += count;
  return front;
}

}  // namespace lockstep
