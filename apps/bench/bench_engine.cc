#include "apps/bench/bench_engine.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "src/base/round_up.h"

namespace lockstep {

std::string_view name_of(BenchCollective collective) {
  return kCollectiveNames.at(static_cast<std::size_t>(collective));
}

std::optional<BenchCollective> find_collective(std::string_view name) {
  const auto* const found =
      std::find(kCollectiveNames.begin(), kCollectiveNames.end(), name);
  if (found == kCollectiveNames.end()) return std::nullopt;
  return static_cast<BenchCollective>(found - kCollectiveNames.begin());
}

bool reduces(BenchCollective collective) {
  return collective == BenchCollective::kAllReduce ||
         collective == BenchCollective::kReduce ||
         collective == BenchCollective::kReduceScatter;
}

bool is_in_place(BenchCollective collective) {
  return block_counts(collective, 0, 1).in == 0;
}

BlockCounts block_counts(BenchCollective collective, int rank, int size) {
  const int at_root = rank == 0 ? size : 0;
  switch (collective) {
    case BenchCollective::kBarrier:
      return {0, 0};
    case BenchCollective::kAllReduce:
    case BenchCollective::kBroadcast:
    case BenchCollective::kReduce:
      return {0, 1};
    case BenchCollective::kAllGather:
      return {1, size};
    case BenchCollective::kGather:
      return {1, at_root};
    case BenchCollective::kScatter:
      return {at_root, 1};
    case BenchCollective::kReduceScatter:
      return {size, 1};
    case BenchCollective::kAllToAll:
      return {size, size};
    case BenchCollective::kSendRecv:
      return {1, 1};
  }
  return {};
}

int blocks_of_row(BenchCollective collective, int size) {
  const BlockCounts at_root = block_counts(collective, 0, size);
  return std::max(at_root.in, at_root.out);
}

std::shared_ptr<std::byte> allocate_plain(std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  const std::size_t whole = std::max(kLine, round_up_to(kLine, bytes));
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kLine, whole));
  if (data == nullptr) throw std::bad_alloc();
  return {data, [](std::byte* block) { std::free(block); }};
}

}  // namespace lockstep
