// One rank of a job whose start, failure and restart are timed:
//
//   lockstep_first_sum end|crash|restart
//
// Rank 0 says when its first all-reduce has finished. Then, with end, the ranks
// end; with crash, the last rank says so and kills itself while the others wait
// for it; with restart it does so at the job's first start only. Times are
// seconds of CLOCK_MONOTONIC, which all processes of a machine share.
#include <torch/torch.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/lockstep.h"
#include "src/base/main_function.h"

namespace lockstep {
namespace {

void say(const char* what) {
  const std::chrono::duration<double> now =
      std::chrono::steady_clock::now().time_since_epoch();
  std::ostringstream line;
  line << std::fixed << what << ' ' << now.count() << '\n';
  std::cout << line.str() << std::flush;
}

void reduce(ProcessGroup& group) {
  torch::Tensor ones = torch::ones({1024});
  all_reduce(group, ones, ReduceOp::kSum).wait();
  if (!ones.eq(group.size()).all().item<bool>())
    throw std::runtime_error("the sum is wrong");
}

int run(std::span<const char* const> arguments) {
  const std::string mode = arguments.size() == 1 ? arguments[0] : "";
  if (mode != "end" && mode != "crash" && mode != "restart")
    throw InvalidArgument("usage: lockstep_first_sum end|crash|restart");
  const auto group = init_process_group();
  reduce(*group);
  if (group->rank() == 0) say("reduced");
  const char* starts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  const bool again = starts != nullptr && std::string(starts) != "0";
  if (mode == "end" || (mode == "restart" && again)) return 0;
  reduce(*group);  // rank 0 has spoken
  if (group->rank() == group->size() - 1) {
    say("crash");
    std::raise(SIGKILL);
  }
  reduce(*group);
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  return lockstep::run_main(count, arguments, lockstep::run);
}
