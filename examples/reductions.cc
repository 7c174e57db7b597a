// Collectives that combine elements: all_reduce, reduce, reduce_scatter.
//
//     lockstep run -n 4 ./reductions
//
// Every rank of the group calls the same collectives in the same order. Each
// returns a Work; .wait() makes the call synchronous.
#include <lockstep/comm/groups.h>

#include <cstdio>
#include <numeric>
#include <vector>

using lockstep::ReduceOp;
using lockstep::view;

int main() {
  const auto group = lockstep::init_process_group();
  const int rank = group->rank(), size = group->size();
  const int sum_of_ranks = size * (size - 1) / 2;
  bool right = true;

  // all_reduce: every rank gets the combined elements, in place.
  std::vector<float> values{static_cast<float>(rank), 1};
  group->all_reduce(view(values), ReduceOp::kSum).wait();
  std::printf("all_reduce sum:     %g %g\n", values[0], values[1]);
  right = right && values[0] == static_cast<float>(sum_of_ranks) &&
          values[1] == static_cast<float>(size);

  // Other operations: kAverage, kMin, kMax, kProduct; kBand, kBor and kBxor on
  // integers.
  std::vector<int> bits{1 << rank};
  group->all_reduce(view(bits), ReduceOp::kBor).wait();
  right = right && bits[0] == (1 << size) - 1;

  // reduce: only the root's elements change.
  const int root = size - 1;
  std::vector<double> largest{rank * 0.5};
  group->reduce(view(largest), ReduceOp::kMax, root).wait();
  std::printf("reduce max:         %g\n", largest[0]);
  right = right && largest[0] == rank * 0.5;  // the root has the largest

  // reduce_scatter: block r of the combined elements goes to rank r.
  std::vector<int> blocks(static_cast<std::size_t>(2 * size));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<int> mine(2);
  group->reduce_scatter(view(blocks), view(mine), ReduceOp::kSum).wait();
  std::printf("reduce_scatter sum: %d %d\n", mine[0], mine[1]);
  right =
      right && mine[0] == size * 2 * rank && mine[1] == size * (2 * rank + 1);

  // Several buffers as one operation, while the rank computes.
  std::vector<float> weights(10, 1), biases(3, 2);
  const lockstep::Work work =
      group->all_reduce({view(weights), view(biases)}, ReduceOp::kAverage);
  // … compute …
  work.wait();
  right = right && weights[9] == 1 && biases[2] == 2;
  return right ? 0 : 1;
}
