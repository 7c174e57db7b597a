#include "src/comm/mpi/plugin/mpi_stream.h"

#include <algorithm>
#include <utility>

namespace lockstep {

bool MpiStream::advance() {
  bool moved = false;
  while (!flights_.empty() && link_.done(flights_.front())) {
    const MpiBlock& block = flights_.front().block;
    if (route_.direction == Direction::kIn)
      request_->copy_in(settled_, block.span());
    settled_ += block.bytes;
    flights_.pop_front();
    moved = true;
  }
  while (flights_.size() < kWindow && posted_ < bytes_ && post()) moved = true;
  return moved;
}

bool MpiStream::post() {
  const std::size_t size = std::min(kChunkBytes, bytes_ - posted_);
  if (route_.direction == Direction::kIn) {
    if (request_->abandoned()) return false;
    flights_.push_back(link_.receive(route_.world_rank, route_.tag, size));
  } else {
    MpiBlock block(size);
    if (!request_->copy_out(posted_, block.span())) return false;
    flights_.push_back(
        link_.send(route_.world_rank, route_.tag, std::move(block)));
  }
  posted_ += size;
  return true;
}

void MpiStream::give_up() {
  for (MpiTransfer& flight : flights_) link_.forget(std::move(flight));
  flights_.clear();
}

}  // namespace lockstep
