// What goes wrong in a job of several ranks, one mistake per word, for the
// guide that reads their errors.
//
//     lockstep run -n 3 ./errors mismatch
//
// The ranks add up a number three times, and in the third sum rank 1 makes the
// mistake. Without a word, or without a rank 1, all goes well.
#include <lockstep/base/error.h>
#include <lockstep/comm/groups.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

using lockstep::view;

namespace {

void make_mistake(const std::string& mistake, lockstep::ProcessGroup& group) {
  std::vector<float> values(4, 1);
  if (mistake == "mismatch") group.broadcast(view(values), 0).wait();
  if (mistake == "exception") throw std::runtime_error("shard 17 is truncated");
  if (mistake == "crash") std::raise(SIGSEGV);
  if (mistake == "killed") std::raise(SIGKILL);
  if (mistake == "leave") std::exit(0);
  if (mistake == "hang") std::raise(SIGSTOP);
}

void train(const std::string& mistake) {
  const auto group = lockstep::init_process_group();
  for (int step = 1; step <= 3; ++step) {
    if (group->rank() == 1 && step == 3) make_mistake(mistake, *group);
    std::vector<float> values{1, 2};
    group->all_reduce(view(values), lockstep::ReduceOp::kSum).wait();
  }
  if (group->rank() == 0) std::puts("three sums");
}

}  // namespace

int main(int count, char** words) try {
  train(count > 1 ? words[1] : "");
} catch (const lockstep::Error& error) {
  // One line says what happened; the others say where, why, and what to do.
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
