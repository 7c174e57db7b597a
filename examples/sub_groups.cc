// Groups of some of the ranks: new_group and split.
//
//     lockstep run -n 4 ./sub_groups
#include <lockstep/comm/groups.h>

#include <cstdio>
#include <vector>

using lockstep::ReduceOp;
using lockstep::view;

int main() {
  const auto world = lockstep::init_process_group();
  const int rank = world->rank(), size = world->size();
  bool right = true;

  // split: the ranks with one color form a group, ordered by key. Here these
  // are the even and the odd ranks, each half from its last rank to its first.
  const auto half = lockstep::split(*world, {.color = rank % 2, .key = -rank});
  std::vector<int> sum{rank};
  half->all_reduce(view(sum), ReduceOp::kSum).wait();
  std::printf("rank %d of %d in its half, whose ranks sum to %d\n",
              half->rank(), half->size(), sum[0]);
  int expected = 0;
  for (int r = rank % 2; r < size; r += 2) expected += r;
  right = right && sum[0] == expected;
  right = right && half->rank() == half->size() - 1 - rank / 2;

  // new_group: a group of the named ranks. Any rank may call it; a rank that is
  // not named gets a group without membership.
  const std::vector<int> edges{0, size - 1};
  if (size > 1) {
    const auto ends = lockstep::new_group(*world, edges);
    std::vector<int> first{rank + 100};
    if (ends->is_member()) ends->broadcast(view(first), 0).wait();
    right = right && first[0] == (ends->is_member() ? 100 : rank + 100);
  }

  // Operations of different groups do not wait for each other. A collective of
  // the world group needs all ranks.
  std::vector<int> all{right ? 1 : 0};
  world->all_reduce(view(all), ReduceOp::kMin).wait();
  return all[0] == 1 ? 0 : 1;
}
