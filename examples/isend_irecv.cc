// Immediate messages: every rank exchanges messages with both neighbours at
// once and computes meanwhile, as when ranks divide a large field into strips.
//
//     lockstep run -n 4 ./isend_irecv
#include <lockstep/comm/groups.h>

#include <cstdio>
#include <vector>

using lockstep::view;

int main() {
  const auto group = lockstep::init_process_group();
  const int rank = group->rank(), size = group->size();
  if (size < 2) {
    std::fprintf(stderr, "start at least two ranks\n");
    return 2;
  }
  const int right = (rank + 1) % size, left = (rank + size - 1) % size;

  // isend and irecv return at once. Until the caller has waited for its Work, a
  // message's memory belongs to the message: the caller must neither change
  // sent elements nor read received ones.
  const std::vector<double> strip(1000, rank);
  std::vector<double> from_left(1000), from_right(1000);
  constexpr int kToRight = 1, kToLeft = 2;
  const lockstep::Work works[] = {
      group->irecv(view(from_left), left, kToRight),
      group->irecv(view(from_right), right, kToLeft),
      group->isend(view(strip), right, kToRight),
      group->isend(view(strip), left, kToLeft),
  };
  double own = 0;  // work that needs no neighbour
  for (const double value : strip) own += value;
  for (const lockstep::Work& work : works) work.wait();

  double sum = own;
  for (std::size_t i = 0; i < strip.size(); ++i)
    sum += from_left[i] + from_right[i];
  std::printf("this strip and its neighbours sum to %g\n", sum);

  // The same as one batch, in any order, without a deadlock.
  using Direction = lockstep::Message::Direction;
  std::vector<double> again(1000);
  const std::vector<lockstep::Message> batch{
      {Direction::kSend, view(strip), right},
      {Direction::kReceive, view(again), left},
  };
  for (const lockstep::Work& work : group->batch_isend_irecv(batch))
    work.wait();

  const bool as_expected =
      sum == 1000.0 * (left + rank + right) && again == from_left;
  return as_expected ? 0 : 1;
}
