// Messages on a byte stream: each is a frame, its length as four little-endian
// bytes and then as many bytes of payload.
//
// Pure functions of the bytes: sockets are elsewhere.
//
// Threads: one object, one thread at a time.
// Errors:  NetworkError when a frame says that it is longer than the limit. The
//          stream cannot be used after that.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace lockstep {

constexpr std::size_t kFrameHeaderBytes = 4;

// The frame around `payload`, which must be shorter than 4 GiB.
std::vector<std::byte> make_frame(std::span<const std::byte> payload);

// Cuts the bytes of a stream, as they arrive, into frames.
class FrameReader {
 public:
  explicit FrameReader(std::size_t max_frame_bytes)
      : max_frame_bytes_(max_frame_bytes) {}

  // The payloads of later frames may be this long.
  void set_max_frame_bytes(std::size_t bytes) { max_frame_bytes_ = bytes; }

  // Takes over bytes that have arrived.
  void append(std::span<const std::byte> arrived);

  // The next frame's payload, or nothing until all of it has arrived. Valid
  // until the next append().
  std::optional<std::span<const std::byte>> next_frame();

  // The next `count` bytes without any framing, as a preamble has.
  std::optional<std::span<const std::byte>> next_bytes(std::size_t count);

  // Bytes that have arrived and were not yet handed out.
  std::size_t buffered_bytes() const { return buffer_.size() - taken_; }

 private:
  std::size_t max_frame_bytes_;
  std::vector<std::byte> buffer_;
  std::size_t taken_ = 0;
};

}  // namespace lockstep
