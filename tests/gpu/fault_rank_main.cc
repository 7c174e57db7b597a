// One rank of a job with a fault, on a GPU or on the CPU:
//
//   lockstep_fault_on_gpu cpu|cuda hang|death|mismatch|memory|capture
//
// scripts/gpu/fault.py starts it once per rank and reads each output:
//
//   after N: TYPE MESSAGE   N milliseconds after the fault the rank got this
//                           error, whose message may have several lines
//   no error                the rank got none
//   reduced after it        all ranks went on after a capture that failed
//   left                    it has left its group, and ends
//   skipped: REASON         there is no such fault on this device
//
// Rank 1 is the culprit: it calls nothing until its standard input ends, kills
// itself, calls with another count, or allocates the device's memory in a pass.
// In a capture all ranks read a value on the host, which is refused; they lose
// nothing and reduce once more.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/trainer/loop/training_device.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/gpu_pass.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/torch/device/device_streams.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCulprit = 1;
constexpr std::int64_t kElements = 1 << 20;
constexpr std::int64_t kBlock = 1 << 28;  // a GiB

// The start of every fault: a group that has reduced before.
class Rank {
 public:
  explicit Rank(const std::string& device)
      : group_(init_process_group()),
        device_(device_of(device, group_->rank())),
        guard_(device_) {
    for (int i = 0; i < 3; ++i) reduce(kElements);
  }

  ProcessGroup& group() const { return *group_; }
  std::shared_ptr<ProcessGroup> shared_group() const { return group_; }
  at::Device device() const { return device_; }
  bool is_culprit() const { return group_->rank() == kCulprit; }

  at::Tensor ones(std::int64_t elements) const {
    return at::ones({elements}, at::TensorOptions().device(device_));
  }

  // The sum of ones must be the number of ranks. On a GPU wait() returns before
  // the result is there, and errors appear in the next call.
  void reduce(std::int64_t elements) const {
    const at::Tensor sum = ones(elements);
    all_reduce(*group_, sum).synchronize();
    const auto found = sum.sum(at::kDouble).item<double>();
    const double expected = static_cast<double>(elements) * group_->size();
    if (found != expected)
      throw Error("a sum is " + std::to_string(found) + ", not " +
                  std::to_string(expected));
  }

 private:
  // Ranks that share GPUs use their rank modulo the number of GPUs.
  static at::Device device_of(const std::string& kind, int rank) {
    const at::Device first = training_device(kind);
    if (first.is_cpu()) return first;
    const int count = c10::impl::VirtualGuardImpl(first.type()).deviceCount();
    return {first.type(), static_cast<at::DeviceIndex>(rank % count)};
  }

  const std::shared_ptr<ProcessGroup> group_;
  const at::Device device_;
  const c10::DeviceGuard guard_;
};

// The others reach the deadline; then fault.py ends the input.
void hang(const Rank& rank) {
  if (!rank.is_culprit()) return rank.reduce(kElements);
  while (std::cin.get() != EOF) continue;
}

void die(const Rank& rank) {
  if (rank.is_culprit()) ::raise(SIGKILL);
  rank.reduce(kElements);
}

void mismatch(const Rank& rank) {
  rank.reduce(rank.is_culprit() ? kElements / 2 : kElements);
}

// The culprit keeps its memory until all ranks have their error.
void run_out_of_memory(const Rank& rank) {
  std::vector<at::Tensor> taken;
  const auto pass = [&] {
    while (rank.is_culprit()) taken.push_back(rank.ones(kBlock));
    rank.reduce(kElements);
  };
  tell_out_of_memory({.group = rank.group(),
                      .device = rank.device(),
                      .what = "a pass",
                      .next = "use smaller batches"},
                     pass);
}

// All ranks capture the same operation, and all are refused.
void capture(const Rank& rank) {
  const StreamOfItsOwn stream(rank.device());
  bool reads = false;
  CapturedPass pass(rank.shared_group(), {}, [&](at::TensorList inputs) {
    const at::Tensor sum = inputs[0].clone();
    all_reduce(rank.group(), sum).wait();
    if (reads) static_cast<void>(sum.sum().item<double>());
    return std::vector<at::Tensor>{sum};
  });
  const at::Tensor input = rank.ones(kElements);
  for (int i = 0; i < 3; ++i) pass.run({input});
  reads = true;
  try {
    pass.run({input});
  } catch (...) {
    rank.reduce(kElements);
    std::cout << "reduced after it" << std::endl;
    throw;
  }
}

// The error that `fault` throws, as the beginning of a line.
std::string error_of(const std::function<void()>& fault) {
  try {
    fault();
    return "";
  } catch (const PeerFailure& error) {
    return std::string("PeerFailure ") + error.what();
  } catch (const Mismatch& error) {
    return std::string("Mismatch ") + error.what();
  } catch (const Timeout& error) {
    return std::string("Timeout ") + error.what();
  } catch (const SystemError& error) {
    return std::string("SystemError ") + error.what();
  } catch (const InvalidArgument& error) {
    return std::string("InvalidArgument ") + error.what();
  } catch (const std::exception& error) {
    return std::string("Error ") + error.what();
  }
}

using Fault = void (*)(const Rank&);
const std::map<std::string, Fault> kFaults{{"hang", hang},
                                           {"death", die},
                                           {"mismatch", mismatch},
                                           {"memory", run_out_of_memory},
                                           {"capture", capture}};

void run(const std::string& device, const std::string& name) {
  if (device == "cpu" && (name == "memory" || name == "capture")) {
    std::cout << "skipped: the CPU has no such fault" << std::endl;
    return;
  }
  {
    const Rank rank(device);
    rank.group().barrier({.label = "the fault begins"}).wait();
    const auto begin = Clock::now();
    const std::string error = error_of([&] { kFaults.at(name)(rank); });
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
        Clock::now() - begin);
    if (error.empty())
      std::cout << "no error" << std::endl;
    else
      std::cout << "after " << took.count() << ": " << error << std::endl;
  }
  destroy_process_group();
  std::cout << "left" << std::endl;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 2 || !lockstep::kFaults.contains(arguments[1])) {
    std::cerr << "usage: lockstep_fault_on_gpu cpu|cuda "
                 "hang|death|mismatch|memory|capture\n";
    return 2;
  }
  try {
    lockstep::run(arguments[0], arguments[1]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
