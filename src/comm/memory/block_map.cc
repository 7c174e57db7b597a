#include "src/comm/memory/block_map.h"

#include <algorithm>
#include <bit>

#include "lockstep/base/error.h"
#include "src/base/round_up.h"

namespace lockstep {

void BlockMap::Ranges::insert(std::size_t offset, std::size_t bytes) {
  if (bytes == 0) return;
  bytes_ += bytes;
  auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      by_size_.erase({previous->second, previous->first});
      by_offset_.erase(previous);
    }
  }
  if (next != by_offset_.end() && next->first == offset + bytes) {
    bytes += next->second;
    by_size_.erase({next->second, next->first});
    by_offset_.erase(next);
  }
  by_offset_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

std::optional<std::size_t> BlockMap::Ranges::take(std::size_t bytes) {
  const auto found = by_size_.lower_bound({bytes, 0});
  if (found == by_size_.end()) return std::nullopt;
  const auto [size, offset] = *found;
  erase(by_offset_.find(offset));
  insert(offset + bytes, size - bytes);
  return offset;
}

std::pair<std::size_t, std::size_t> BlockMap::Ranges::take_largest() {
  const auto [size, offset] = *by_size_.rbegin();
  erase(by_offset_.find(offset));
  return {offset, size};
}

void BlockMap::Ranges::erase(
    std::map<std::size_t, std::size_t>::iterator range) {
  bytes_ -= range->second;
  by_size_.erase({range->second, range->first});
  by_offset_.erase(range);
}

BlockMap::BlockMap(std::size_t bytes) {
  untouched_.insert(0, bytes / kUnit * kUnit);
}

std::size_t BlockMap::class_size(std::size_t bytes) {
  const std::size_t step =
      std::max(kUnit, std::bit_floor(std::max<std::size_t>(bytes, 1)) / 8);
  return std::max<std::size_t>(1, (bytes + step - 1) / step) * step;
}

std::optional<std::size_t> BlockMap::take(std::size_t bytes) {
  // Rounding a larger size up would overflow.
  if (bytes > (~std::size_t{0} >> 1)) return std::nullopt;
  const std::size_t size = class_size(bytes);
  auto offset = take_kept(size);
  if (!offset) offset = take_range(size);
  if (!offset) return std::nullopt;
  used_.emplace(*offset, size);
  used_bytes_ += size;
  return offset;
}

std::optional<std::size_t> BlockMap::take_kept(std::size_t size) {
  const auto found = kept_.find(size);
  if (found == kept_.end() || found->second.empty()) return std::nullopt;
  const std::size_t offset = found->second.back();
  found->second.pop_back();
  in_kept_ -= size;
  return offset;
}

// Touched memory comes first, even if kept blocks must be joined for it. A
// block with memory of both kinds is the last resort.
std::optional<std::size_t> BlockMap::take_range(std::size_t size) {
  if (const auto offset = touched_.take(size)) return offset;
  if (in_kept_ >= size) {
    join_kept();
    if (const auto offset = touched_.take(size)) return offset;
  }
  if (const auto offset = untouched_.take(size)) return offset;
  if (bytes_kept() + untouched_.bytes() < size) return std::nullopt;
  join_kept();
  while (!untouched_.empty()) {
    const auto [offset, bytes] = untouched_.take_largest();
    touched_.insert(offset, bytes);
  }
  return touched_.take(size);
}

std::size_t BlockMap::size_of(std::size_t offset) const {
  const auto block = used_.find(offset);
  LOCKSTEP_CHECK(block != used_.end(), "freeing an unknown heap block");
  return block->second;
}

void BlockMap::give_back(std::size_t offset) {
  const std::size_t size = retire(offset);
  in_kept_ += size;
  kept_[size].push_back(offset);
}

std::size_t BlockMap::retire(std::size_t offset) {
  const auto block = used_.find(offset);
  LOCKSTEP_CHECK(block != used_.end(), "freeing an unknown heap block");
  const std::size_t size = block->second;
  used_.erase(block);
  used_bytes_ -= size;
  return size;
}

void BlockMap::join_kept() {
  for (const auto& [size, offsets] : kept_)
    for (const std::size_t offset : offsets) touched_.insert(offset, size);
  kept_.clear();
  in_kept_ = 0;
}

void BlockMap::release(
    std::size_t most,
    const std::function<void(std::size_t, std::size_t)>& forget) {
  if (bytes_kept() <= most) return;
  join_kept();
  while (bytes_kept() > most) {
    const std::size_t too_many = round_up_to(kUnit, bytes_kept() - most);
    const auto [offset, bytes] = touched_.take_largest();
    const std::size_t forgotten = std::min(bytes, too_many);
    const std::size_t end = offset + bytes;
    touched_.insert(offset, bytes - forgotten);
    forget(end - forgotten, forgotten);
    untouched_.insert(end - forgotten, forgotten);
  }
}

}  // namespace lockstep
