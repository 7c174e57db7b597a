// Blocking messages: a token goes once around all ranks, and each adds its
// rank.
//
//     lockstep run -n 4 ./send_recv
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
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;

  // send returns when its memory may be reused, recv when its memory holds the
  // message. If rank 0 received first as well, no rank would ever send.
  std::vector<int> token{0};
  if (rank == 0) {
    group->send(view(token), next);
    group->recv(view(token), previous);
  } else {
    group->recv(view(token), previous);
    token[0] += rank;
    group->send(view(token), next);
  }
  std::printf("saw the token at %d\n", token[0]);

  // recv selects a message by its sender and its tag, in any order. kAnySource
  // takes the first message of any rank.
  std::vector<float> apples{1.5}, pears{2.5};
  constexpr int kApples = 7, kPears = 8;
  if (rank == 0) {
    group->send(view(apples), 1, kApples);
    group->send(view(pears), 1, kPears);
  } else if (rank == 1) {
    apples = pears = {0};
    group->recv(view(pears), 0, kPears);
    const int sender = group->recv(view(apples), lockstep::kAnySource, kApples);
    std::printf("got %g and %g from rank %d\n", apples[0], pears[0], sender);
  }

  const int sum_so_far = rank == 0 ? size * (size - 1) / 2  // back home
                                   : rank * (rank + 1) / 2;
  const bool right =
      token[0] == sum_so_far && apples[0] == 1.5 && pears[0] == 2.5;
  return right ? 0 : 1;
}
