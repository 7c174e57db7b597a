// One rank of ours in the benchmarks of collectives, started with the
// environment of a launcher:
//
//   lockstep_collectives REQUESTS     answers the driver (collective_answers.h)
//   lockstep_collectives death        waits for what rank VICTIM never does;
//   says
//                                     when it learns that VICTIM died
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>

#include "apps/bench/bench_group_engine.h"
#include "benchmarks/collective_answers.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/base/main_function.h"

namespace lockstep {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The driver kills the victim while the survivor waits.
int see_death(ProcessGroup& group) {
  const char* text = std::getenv("VICTIM");
  const int victim = text == nullptr ? 1 : std::atoi(text);
  std::vector<float> data(1 << 20, 1.0F);
  group.barrier().wait();
  if (group.rank() == victim) {
    while (true) ::pause();
  }
  const Work work = group.all_reduce(view(data), ReduceOp::kSum);
  std::cout << R"({"waiting": true})" << std::endl;
  try {
    work.wait();
  } catch (const PeerFailure& failure) {
    std::cout << R"({"seen_at_ns": )" << now_ns() << R"(, "rank": )"
              << failure.rank() << "}" << std::endl;
  }
  return 0;
}

int run(std::span<const char* const> arguments) {
  if (arguments.size() != 1)
    throw InvalidArgument("usage: lockstep_collectives REQUESTS | death");
  const std::string argument = arguments[0];
  const auto group = init_process_group();
  if (argument == "death") return see_death(*group);
  GroupEngine engine(group);
  answer_requests(engine, argument);
  // No rank leaves while another may still need it.
  group->barrier().wait();
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  return lockstep::run_main(count, arguments, lockstep::run);
}
