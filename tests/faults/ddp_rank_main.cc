// One rank that trains a net under DistributedDataParallel while a fault
// occurs: `lockstep_ddp_rank CASE`. ddp_process_test.cc starts it once per rank
// and reads its output.
//
//   in place N of M   how many gradients lay where peers reach them
//   weights HASH      of all parameters' bits, when training is over
//   nan N of M        how many of their elements are NaN
//   error TYPE RANK   what left the training, with the culprit's rank or -1,
//   <message>         and what it said
//   end of error
//
// The fault occurs in rank VICTIM (default 1). Exits with 10 after an error.
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/comm/group/group_core.h"
#include "src/comm/memory/heap.h"
#include "src/torch/testing/flat_parameters.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

constexpr int kSteps = 6;
constexpr int kStepOfFault = 2;
constexpr int kGotAnError = 10;

void say(const std::string& line) { std::cout << line << std::endl; }

std::string text_from(const char* variable, const std::string& otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : text;
}

int own_rank() { return std::stoi(text_from("RANK", "0")); }
bool is_victim() { return own_rank() == std::stoi(text_from("VICTIM", "1")); }

void limit(__rlimit_resource resource, rlim_t most) {
  const rlimit limits{most, most};
  if (::setrlimit(resource, &limits) != 0)
    throw std::runtime_error("setrlimit was refused");
}

rlim_t address_space() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// On the ranks LIMITED (all or the victim): sets the resource limit LIMIT, "as"
// or "fsize", to MOST bytes; for address space, to MOST bytes more than in use.
void take_away() {
  if (text_from("LIMITED", "all") != "all" && !is_victim()) return;
  const auto most = static_cast<rlim_t>(std::stoull(text_from("MOST", "0")));
  const std::string name = text_from("LIMIT", "none");
  if (name == "as") limit(RLIMIT_AS, address_space() + most);
  if (name == "fsize") limit(RLIMIT_FSIZE, most);
}

// Gradients of 0.5 and 1 MiB, which are reduced in place, and of at most 16
// KiB, which are not; and a BatchNorm, so that ranks communicate before each
// forward pass.
struct Wide : torch::nn::Module {
  Wide() { fill(*this, 0); }

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor middle =
        torch::tanh(second(torch::tanh(norm(first(input)))));
    if (in_backward)
      middle.register_hook([this](const at::Tensor& gradient) {
        in_backward();
        return gradient;
      });
    return third(middle);
  }

  template <class Layer>
  Layer add(const char* name, Layer layer) {
    return register_module(name, layer);
  }

  torch::nn::Linear first = add("first", torch::nn::Linear(256, 512));
  torch::nn::BatchNorm1d norm = add("norm", torch::nn::BatchNorm1d(512));
  torch::nn::Linear second = add("second", torch::nn::Linear(512, 512));
  torch::nn::Linear third = add("third", torch::nn::Linear(512, 8));
  // Called while the gradients of the third layer are being reduced and those
  // of the other layers are still to come.
  std::function<void()> in_backward;
};

// ONE_PASS: gradients are averaged and weights updated together, in shards.
bool in_one_pass() { return std::getenv("ONE_PASS") != nullptr; }

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    std::vector<at::Tensor> parameters,
    const std::shared_ptr<ProcessGroup>& group) {
  const auto rule = torch::optim::SGDOptions(0.1).momentum(0.9);
  if (!in_one_pass())
    return std::make_unique<FusedSGD>(std::move(parameters), rule);
  return std::make_unique<ZeroRedundancyOptimizer>(
      std::move(parameters), rule,
      ZeroRedundancyOptimizerOptions{.group = group,
                                     .averages_gradients = true});
}

class Training {
 public:
  Training() : Training(init_process_group()) {}
  explicit Training(const std::shared_ptr<ProcessGroup>& group)
      : group_(group),
        model_(std::make_shared<Wide>(), {.group = group,
                                          .first_bucket_bytes = 8 << 10,
                                          .bucket_bytes = 512 << 10,
                                          .average_gradients = !in_one_pass()}),
        optimizer_(make_optimizer(model_.parameters(), group)) {}

  void step(const std::function<void()>& in_backward = {}) {
    const double phase = 100.0 * steps_++ + group_->rank();
    at::Tensor input = wave({8, 256}, phase);
    if (poisoned_) input[0][0] = std::nan("");
    optimizer_->zero_grad();
    model_->in_backward = in_backward;
    loss_of(model_(input), wave({8, 8}, phase + 50)).backward();
    optimizer_->step();
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) step();
  }
  // Runs all steps. Before the step of the fault resources become scarce, and
  // in it the victim's backward pass calls `fault`.
  void run_with(const std::function<void()>& fault) {
    run(kStepOfFault);
    take_away();
    step(is_victim() ? fault : std::function<void()>());
    run(kSteps - kStepOfFault - 1);
  }
  // This rank's data now contain a NaN.
  void poison() { poisoned_ = true; }

  void report() const {
    say_where_gradients_are();
    const at::Tensor weights = flat_parameters(*model_);
    const auto* bytes = static_cast<const char*>(weights.const_data_ptr());
    const std::hash<std::string_view> hash;
    say("weights " + std::to_string(hash({bytes, weights.nbytes()})));
    say("nan " + std::to_string(weights.isnan().sum().item<int>()) + " of " +
        std::to_string(weights.numel()));
  }

  ProcessGroup& group() { return *group_; }
  Wide& net() { return *model_; }

 private:
  void say_where_gradients_are() const {
    const auto heap = group_->core().heap();
    int in_place = 0, all = 0;
    for (const at::Tensor& gradient : gradients_of(*model_)) {
      ++all;
      if (heap && gradient.storage().nbytes() >= 128 << 10 &&
          heap->offset_of(gradient.const_data_ptr(), gradient.nbytes()))
        ++in_place;
    }
    say("in place " + std::to_string(in_place) + " of " + std::to_string(all));
  }

  std::shared_ptr<ProcessGroup> group_;
  DistributedDataParallel<Wide> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  int steps_ = 0;
  bool poisoned_ = false;
};

int train() {
  Training training;
  training.run(kSteps);
  training.report();
  return 0;
}

int die_in_backward() {
  Training().run_with([] { ::raise(SIGKILL); });
  return 0;
}

int throw_in_backward() {
  Training().run_with(
      [] { throw std::runtime_error("a fault of the user's"); });
  return 0;
}

// More than the heap and LibTorch's allocator can provide.
int allocate_too_much_in_backward() {
  Training().run_with([] { torch::empty({std::int64_t{1} << 45}); });
  return 0;
}

// The victim makes one more step; the others have left by then.
int extra_step() {
  Training training;
  training.run(kSteps + (is_victim() ? 1 : 0));
  return 0;
}

// The victim makes one more step while the others evaluate together.
int extra_step_before_evaluation() {
  Training training;
  training.run(kSteps + (is_victim() ? 1 : 0));
  std::vector<float> accuracy{1};
  training.group().all_reduce(view(accuracy), ReduceOp::kAverage).wait();
  return 0;
}

int nan_in_a_batch() {
  Training training;
  training.run(kStepOfFault);
  if (is_victim()) training.poison();
  training.run(kSteps - kStepOfFault);
  training.report();
  return 0;
}

// A child that was forked during a pass may use all memory, which is now a
// private copy.
[[noreturn]] void compute_as_child(Wide& net) {
  const c10::AutoGradMode no_grad(false);
  bool right = true;
  for (int i = 0; i < 20; ++i) {
    const at::Tensor ones = torch::ones({300, 300});
    right = right && torch::mm(ones, ones).eq(300).all().item<bool>();
    for (const at::Tensor& parameter : net.parameters()) {
      parameter.fill_(i);
      if (parameter.grad().defined()) parameter.grad().fill_(-i);
      right = right && parameter.eq(i).all().item<bool>();
    }
  }
  std::exit(right ? 0 : 1);
}

// The parent continues at once and waits for the child at the end.
int fork_in_backward() {
  Training training;
  pid_t child = -1;
  training.run_with([&] {
    child = ::fork();
    if (child == 0) compute_as_child(training.net());
  });
  training.report();
  int status = 0;
  if (is_victim() && (::waitpid(child, &status, 0) != child || status != 0)) {
    say("the child ended with status " + std::to_string(status));
    return 1;
  }
  return 0;
}

int limited_at_start() {
  take_away();
  return train();
}

int limited_in_the_middle() {
  Training training;
  training.run_with({});
  training.report();
  return 0;
}

// The victim's heap has another size than the others'.
int train_with_unequal_heaps() {
  if (is_victim())
    ::setenv("LOCKSTEP_HEAP_BYTES", text_from("VICTIM_HEAP", "0").c_str(), 1);
  return train();
}

int run(const std::string& name) {
  const std::map<std::string, int (*)()> cases{
      {"train", train},
      {"die_in_backward", die_in_backward},
      {"throw_in_backward", throw_in_backward},
      {"allocate_too_much_in_backward", allocate_too_much_in_backward},
      {"extra_step", extra_step},
      {"extra_step_before_evaluation", extra_step_before_evaluation},
      {"nan_in_a_batch", nan_in_a_batch},
      {"fork_in_backward", fork_in_backward},
      {"limited_at_start", limited_at_start},
      {"limited_in_the_middle", limited_in_the_middle},
      {"train_with_unequal_heaps", train_with_unequal_heaps},
  };
  const auto found = cases.find(name);
  if (found != cases.end()) return found->second();
  say("unknown case " + name);
  return 2;
}

int say_error(const std::string& type, int rank, const std::string& message) {
  say("error " + type + " " + std::to_string(rank) + "\n" + message +
      "\nend of error");
  return kGotAnError;
}

int run_and_say_errors(const std::string& name) {
  try {
    return run(name);
  } catch (const PeerFailure& error) {
    return say_error("PeerFailure", error.rank(), error.what());
  } catch (const Mismatch& error) {
    return say_error("Mismatch", -1, error.what());
  } catch (const Timeout& error) {
    return say_error("Timeout", -1, error.what());
  } catch (const SystemError& error) {
    return say_error("SystemError", -1, error.what());
  } catch (const std::exception& error) {
    return say_error("Error", -1, error.what());
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  return lockstep::run_and_say_errors(argc > 1 ? argv[1] : "");
}
