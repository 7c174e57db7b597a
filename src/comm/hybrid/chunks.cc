#include "src/comm/hybrid/chunks.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr std::size_t kLeastPieceBytes = std::size_t{64} << 10;
constexpr std::size_t kMostPieceBytes = std::size_t{1} << 20;
// The wanted number of chunks of an operation, if the pieces allow it: the
// first and the last chunk do not overlap with others.
constexpr std::size_t kWantedChunks = 8;
constexpr std::size_t kAlignment = 64;

std::size_t quotient_up(std::size_t a, std::size_t b) {
  return (a + b - 1) / b;
}

}  // namespace

Chunks::Chunks(std::span<const Buffer> buffers, const Shape& shape,
               const Places& places)
    : run_{buffers},
      shape_(shape),
      type_(buffers.front().type),
      bytes_(total_bytes(run_)) {
  const std::size_t ways = shape.blocks * shape.pieces;
  const std::size_t piece =
      std::min(std::clamp(bytes_ / (ways * kWantedChunks), kLeastPieceBytes,
                          kMostPieceBytes),
               quotient_up(bytes_, ways));
  piece_bytes_ = quotient_up(piece, kAlignment) * kAlignment;
  memory_.resize(quotient_up(bytes_, chunk_bytes()));
  std::byte* ours = nullptr;
  BufferCursor cursor(run_);
  for (std::size_t c = 0; c < memory_.size(); ++c) {
    memory_[c] = {cursor.here(), cursor.left() < bytes_of(c)};
    cursor.advance(bytes_of(c));
    if (!memory_[c].is_ours) continue;
    if (ours == nullptr) ours = places(kPlaces * chunk_bytes());
    memory_[c].data = ours + c % kPlaces * chunk_bytes();
  }
}

std::size_t Chunks::bytes_of(std::size_t c) const {
  return std::min(chunk_bytes(), bytes_ - c * chunk_bytes());
}

Buffer Chunks::part(std::size_t c, std::size_t at, std::size_t bytes) const {
  const std::size_t begin = std::min(at, bytes_of(c));
  const std::size_t end = std::min(at + bytes, bytes_of(c));
  return {memory_[c].data + begin,
          static_cast<std::int64_t>((end - begin) / size_of(type_)), type_};
}

void Chunks::fetch(std::size_t c) const {
  if (memory_[c].is_ours)
    copy_from(run_, c * chunk_bytes(), {memory_[c].data, bytes_of(c)});
}

void Chunks::put_back(std::size_t c) const {
  if (memory_[c].is_ours)
    copy_into(run_, c * chunk_bytes(), {memory_[c].data, bytes_of(c)});
}

}  // namespace lockstep
