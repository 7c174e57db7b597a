// Messages on a byte stream. Each is a frame: its length as four little-endian
// bytes, then the payload.
//
// This code handles bytes only, no sockets.
//
// Threads: one thread at a time per object.
// Errors:  NetworkError when a frame announces more bytes than the limit. The
//          stream is unusable afterwards.
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

  // Sets the limit for the payloads of later frames.
  void set_max_frame_bytes(std::size_t bytes) { max_frame_bytes_ = bytes; }

  // Adds bytes that have arrived.
  void append(std::span<const std::byte> arrived);

  // The next frame's payload, or nothing while it is incomplete. Valid until
  // the next append().
  std::optional<std::span<const std::byte>> next_frame();

  // The next `count` bytes without framing, for a preamble.
  std::optional<std::span<const std::byte>> next_bytes(std::size_t count);

  // Bytes that have arrived and were not yet returned.
  std::size_t buffered_bytes() const { return buffer_.size() - taken_; }

 private:
  std::size_t max_frame_bytes_;
  std::vector<std::byte> buffer_;
  std::size_t taken_ = 0;
};

}  // namespace lockstep
