// Collectives that move elements: broadcast, scatter, gather, all_gather,
// all_to_all, and barrier.
//
//     lockstep run -n 4 ./gathering
//
// The longer buffer of an operation has one block per rank, in rank order; in
// the uneven forms (_v) it is a list of buffers, one per rank.
#include <lockstep/comm/groups.h>

#include <cstdio>
#include <numeric>
#include <vector>

using lockstep::view;

int main() {
  const auto group = lockstep::init_process_group();
  const int rank = group->rank(), size = group->size();
  const auto ranks = static_cast<std::size_t>(size);
  constexpr int kRoot = 0;
  std::vector<int> everyone(ranks);  // 0, 1, 2, …
  std::iota(everyone.begin(), everyone.end(), 0);
  bool right = true;

  // broadcast: every rank gets the root's elements.
  std::vector<int> seed{rank == kRoot ? 42 : 0};
  group->broadcast(view(seed), kRoot).wait();
  right = right && seed[0] == 42;

  // scatter: the root sends one block to each rank …
  std::vector<int> mine(1);
  group->scatter(view(everyone), view(mine), kRoot).wait();
  std::printf("scatter gave %d\n", mine[0]);
  right = right && mine[0] == rank;

  // … and gather collects them. Only the root needs memory for the result.
  std::vector<int> collected(rank == kRoot ? ranks : 0);
  group->gather(view(mine), view(collected), kRoot).wait();
  right = right && (rank != kRoot || collected == everyone);

  // all_gather: every rank collects.
  std::vector<int> all(ranks);
  group->all_gather(view(mine), view(all)).wait();
  right = right && all == everyone;

  // all_gather_v: rank r has r + 1 elements.
  const std::vector<float> uneven(static_cast<std::size_t>(rank + 1), 0.5F);
  std::vector<std::int64_t> counts(everyone.begin(), everyone.end());
  for (std::int64_t& count : counts) ++count;
  std::vector<float> joined(ranks * (ranks + 1) / 2);
  group->all_gather_v(view(uneven), split(view(joined), counts)).wait();
  right = right && joined == std::vector<float>(joined.size(), 0.5F);

  // all_to_all: block r goes to rank r; a matrix is transposed over the ranks.
  std::vector<int> row(ranks), column(ranks);
  for (std::size_t r = 0; r < ranks; ++r)
    row[r] = 10 * rank + static_cast<int>(r);
  group->all_to_all(view(row), view(column)).wait();
  std::printf("all_to_all got %d … %d\n", column.front(), column.back());
  for (int r = 0; r < size; ++r)
    right = right && column[static_cast<std::size_t>(r)] == 10 * r + rank;

  // barrier: no rank continues before all ranks have arrived.
  group->barrier().wait();
  return right ? 0 : 1;
}
