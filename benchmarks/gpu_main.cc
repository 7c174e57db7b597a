// A training step on a GPU: LibTorch alone, or under our
// DistributedDataParallel as the only rank, which reduces its gradients all the
// same (reduce_alone) and whose passes may be captured in a CUDA graph:
//
//   lockstep_gpu_step resnet18|resnet50|cnn|mlp BATCH libtorch|ddp|graph
//                     float32|bfloat16 REQUESTS
//
// Images of 3 x 224 x 224, or for the two small models (mlp is
// 784-4096-4096-10) of 1 x 28 x 28, which stay on the device, channels-last;
// SGD with momentum 0.9, fused. Answers questions of the driver (requests.h):
// "steps N", milliseconds of a step, of N that the device ends, and of them the
// host's; "host N", the host's of N steps that begin on an idle device; "loss",
// that of the last step.
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "apps/trainer/model/models.h"
#include "apps/trainer/model/precision.h"
#include "benchmarks/requests.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/gpu_pass.h"
#include "lockstep/torch/optimizers.h"
#include "src/base/main_function.h"
#include "src/torch/device/device_streams.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr std::uint64_t kSeed = 1234;
const at::Device kDevice(at::kCUDA, 0);

struct Job {
  std::string model;
  std::int64_t batch = 32;
  std::string way = "libtorch";
  Precision precision = Precision::kFloat32;
};

ModelOptions model_options(const Job& job) {
  if (job.model.starts_with("resnet"))
    return {.channels = 3,
            .height = 224,
            .width = 224,
            .classes = 1000,
            .seed = kSeed};
  return {.hidden = {4096, 4096}, .dropout = 0, .seed = kSeed};
}

void synchronize() {
  c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(kDevice.index());
}

std::shared_ptr<Classifier> make_on_device(const Job& job) {
  const at::NoGradGuard no_grad;
  auto model = make_model(job.model, model_options(job));
  model->to(kDevice);
  for (at::Tensor& parameter : model->parameters())
    if (parameter.dim() == 4)
      parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  return model;
}

// A model and what trains it. `forward` hides whether it is wrapped.
class Training {
 public:
  explicit Training(const Job& job)
      : job_(job),
        model_(make_on_device(job)),
        optimizer_(model_->parameters(),
                   torch::optim::SGDOptions(0.01).momentum(0.9)) {
    forward_ = [this](const at::Tensor& x) { return model_->forward(x); };
    if (job.way != "libtorch") {
      init_process_group();
      replica_ = std::make_unique<DistributedDataParallel<Classifier>>(
          model_, DistributedDataParallelOptions{.reduce_alone = true});
      forward_ = [this](const at::Tensor& x) { return replica_->forward(x); };
    }
    if (job.way == "graph")
      captured_ = std::make_unique<CapturedPass>(
          default_group(), model_->parameters(), [this](at::TensorList inputs) {
            return std::vector<at::Tensor>{pass(inputs[0], inputs[1])};
          });
    torch::manual_seed(kSeed);
    const ModelOptions shape = model_options(job);
    images_ =
        torch::randn({job.batch, shape.channels, shape.height, shape.width})
            .to(kDevice)
            .contiguous(at::MemoryFormat::ChannelsLast);
    labels_ =
        torch::randint(0, shape.classes, {job.batch}, torch::kLong).to(kDevice);
  }

  void step() {
    optimizer_.zero_grad();
    loss_ = captured_ ? captured_->run({images_, labels_}).front()
                      : pass(images_, labels_);
    optimizer_.step();
  }

  double loss() const { return loss_.item<double>(); }

 private:
  at::Tensor pass(const at::Tensor& images, const at::Tensor& labels) {
    at::Tensor loss;
    {
      const MixedPrecision mixed(job_.precision, at::kCUDA);
      loss = torch::nn::functional::cross_entropy(forward_(images), labels);
    }
    loss.backward();
    return loss.detach();
  }

  const StreamOfItsOwn stream_{kDevice};  // what can be captured
  Job job_;
  std::shared_ptr<Classifier> model_;
  FusedSGD optimizer_;
  std::unique_ptr<DistributedDataParallel<Classifier>> replica_;
  std::function<at::Tensor(const at::Tensor&)> forward_;
  std::unique_ptr<CapturedPass> captured_;
  at::Tensor images_, labels_, loss_;
};

std::string answer_steps(Training& training, int steps) {
  synchronize();
  const auto begin = Clock::now();
  for (int i = 0; i < steps; ++i) training.step();
  const Milliseconds host = Clock::now() - begin;
  synchronize();
  const Milliseconds device = Clock::now() - begin;
  std::ostringstream text;
  text << R"({"step_ms": )" << device.count() / steps << R"(, "host_ms": )"
       << host.count() / steps << "}";
  return text.str();
}

// After several steps a full queue of launches makes the host wait for the
// device, and its part as long as the device's.
std::string answer_host(Training& training, int steps) {
  Milliseconds host{0};
  for (int i = 0; i < steps; ++i) {
    synchronize();
    const auto begin = Clock::now();
    training.step();
    host += Clock::now() - begin;
  }
  return R"({"host_ms": )" + std::to_string(host.count() / steps) + "}";
}

std::string answer(Training& training, const std::string& request) {
  std::istringstream words(request);
  std::string what;
  int count = 1;
  words >> what >> count;
  if (what == "steps") return answer_steps(training, count);
  if (what == "host") return answer_host(training, count);
  return R"({"loss": )" + std::to_string(training.loss()) + "}";
}

int run(std::span<const char* const> words) {
  const std::vector<std::string> arguments(words.begin(), words.end());
  if (arguments.size() != 5)
    throw InvalidArgument(
        "usage: lockstep_gpu_step resnet18|resnet50|cnn|mlp BATCH "
        "libtorch|ddp|graph float32|bfloat16 REQUESTS");
  Training training({.model = arguments[0],
                     .batch = std::stoll(arguments[1]),
                     .way = arguments[2],
                     .precision = parse_precision(arguments[3])});
  answer_requests(arguments[4], 0, [&](const std::string& request) {
    return answer(training, request);
  });
  if (is_initialized()) destroy_process_group();
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  return lockstep::run_main(count, arguments, lockstep::run);
}
