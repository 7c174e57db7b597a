#include "src/comm/wire/scratch.h"

#include <algorithm>

#include "src/base/round_up.h"

namespace lockstep {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

std::byte* Scratch::take(std::size_t bytes) {
  bytes = round_up_to(kAlignment, std::max<std::size_t>(bytes, 1));
  while (current_ < blocks_.size() && used_ + bytes > blocks_[current_].bytes) {
    ++current_;
    used_ = 0;
  }
  if (current_ == blocks_.size()) {
    const std::size_t size = std::max(bytes, kBlockBytes);
    // new[] of bytes is aligned for any element.
    blocks_.push_back(
        {std::make_unique_for_overwrite<std::byte[]>(size), size});
    used_ = 0;
  }
  std::byte* taken = blocks_[current_].memory.get() + used_;
  used_ += bytes;
  return taken;
}

void Scratch::reset() {
  std::size_t kept = 0;
  std::erase_if(blocks_, [&](const Block& block) {
    kept += block.bytes;
    return kept > kKeptBytes;
  });
  current_ = 0;
  used_ = 0;
}

}  // namespace lockstep
