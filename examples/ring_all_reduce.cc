// A ring all-reduce by hand, with messages only.
//
//     lockstep run -n 4 ./ring_all_reduce
//
// The elements are divided into one chunk per rank. In the first loop each rank
// sends partial sums to the right, until rank r holds the complete sum of chunk
// r + 1; in the second loop ranks pass on the complete sums. Each of n ranks
// sends 2 (n - 1) / n of the elements. (group->all_reduce() is faster.)
#include <lockstep/comm/groups.h>

#include <cstdio>
#include <span>
#include <vector>

using lockstep::ProcessGroup;
using lockstep::view;

// Chunk `index`, counted around the ring, of elements for `ranks` ranks.
std::span<float> chunk(std::span<float> elements, int index, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  const std::size_t i = static_cast<std::size_t>(index + 2 * ranks) % n;
  const std::size_t begin = elements.size() * i / n;
  return elements.subspan(begin, elements.size() * (i + 1) / n - begin);
}

void ring_all_reduce(ProcessGroup& group, std::span<float> elements) {
  const int n = group.size(), rank = group.rank();
  const int right = (rank + 1) % n, left = (rank + n - 1) % n;
  std::vector<float> arrived(elements.size() / static_cast<std::size_t>(n) + 1);
  for (int step = 0; step < n - 1; ++step) {
    const auto to_send = chunk(elements, rank - step, n);
    const auto to_add = chunk(elements, rank - step - 1, n);
    const auto received = std::span(arrived).first(to_add.size());
    const auto sent = group.isend(view(to_send), right);
    group.recv(view(received), left);
    for (std::size_t i = 0; i < to_add.size(); ++i) to_add[i] += received[i];
    sent.wait();
  }
  for (int step = 0; step < n - 1; ++step) {
    const auto to_send = chunk(elements, rank - step + 1, n);
    const auto to_replace = chunk(elements, rank - step, n);
    const auto sent = group.isend(view(to_send), right);
    group.recv(view(to_replace), left);
    sent.wait();
  }
}

int main() {
  const auto group = lockstep::init_process_group();
  std::vector<float> elements(1'000'003);  // a prime
  for (std::size_t i = 0; i < elements.size(); ++i)
    elements[i] = static_cast<float>(group->rank() + static_cast<int>(i % 97));
  std::vector<float> expected = elements;

  ring_all_reduce(*group, elements);
  group->all_reduce(view(expected), lockstep::ReduceOp::kSum).wait();

  const bool right = elements == expected;  // small integers: sums are exact
  std::printf("the ring and all_reduce %s\n", right ? "agree" : "DIFFER");
  return right ? 0 : 1;
}
