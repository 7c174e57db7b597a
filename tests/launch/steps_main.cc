// A rank that reports its steps: launch_stepper WHERE [GATE]. Each step ends
// with an all_reduce. Rank 1 takes long in WHERE, "data" or "compute"; with
// "stop" it reads a line of GATE after its first steps.
#include <chrono>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/comm/groups.h"
#include "lockstep/comm/training_loop.h"

namespace {

constexpr int kStepsBeforeStop = 20;
constexpr std::int64_t kSamplesPerStep = 16;

// By the thread's own time: a busy machine makes no other rank the slow one.
void compute_long() {
  constexpr std::clock_t kTicks = CLOCKS_PER_SEC / 50;
  const std::clock_t begin = std::clock();
  while (std::clock() - begin < kTicks) {
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::string where = count > 1 ? arguments[1] : "";
  const std::string gate = count > 2 ? arguments[2] : "";
  lockstep::init_process_group();
  const auto group = lockstep::default_group();
  const bool slow = group->rank() == 1;
  std::vector<float> numbers(16);
  lockstep::StepReport report(group);
  for (int step = 0;; ++step) {
    if (slow && where == "data") compute_long();
    report.data_ready();
    if (slow && where == "compute") compute_long();
    if (slow && where == "stop" && step == kStepsBeforeStop) {
      std::string line;
      std::getline(std::ifstream(gate) >> std::ws, line);
    }
    group
        ->all_reduce(lockstep::view(numbers), lockstep::ReduceOp::kSum,
                     {.timeout = std::chrono::minutes(5)})
        .wait();
    report.step_done(kSamplesPerStep);
  }
}
