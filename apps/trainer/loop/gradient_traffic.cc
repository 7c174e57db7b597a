#include "apps/trainer/loop/gradient_traffic.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "apps/options/training_names.h"
#include "lockstep/torch/comm_hooks.h"
#include "src/torch/ddp/replicate.h"

namespace lockstep {
namespace {

// Early training tolerates neither compressed nor missing averages: the start
// is where the default schedule reaches the full rate.
std::int64_t start_of(std::int64_t steps) {
  return std::max<std::int64_t>(2, steps / 5);
}

std::shared_ptr<CompressingHook> compressing_hook(HookName name,
                                                  std::int64_t steps) {
  switch (name) {
    case HookName::kNone:
    case HookName::kPostLocalSgd:
      return nullptr;
    case HookName::kFp16:
      return fp16_compress_hook();
    case HookName::kBf16:
      return bf16_compress_hook();
    case HookName::kPowerSgd:
      return std::make_shared<PowerSgdHook>(PowerSgdOptions{
          .matrix_approximation_rank = 2, .start_iteration = start_of(steps)});
  }
  return nullptr;
}

}  // namespace

GradientTraffic::GradientTraffic(std::string_view hook,
                                 DistributedDataParallel<Classifier>& model,
                                 std::int64_t steps)
    : model_(model),
      compression_(compressing_hook(parse_hook(hook), steps)),
      power_sgd_(std::dynamic_pointer_cast<PowerSgdHook>(compression_)) {
  if (compression_) model_.register_comm_hook(compression_);
  if (hook != "post-local-sgd") return;
  constexpr std::int64_t kPeriod = 4;
  model_.register_comm_hook(std::make_shared<PostLocalSgdHook>(
      PostLocalSgdOptions{.start_iteration = start_of(steps),
                          .post_local_gradient_allreduce = false}));
  averager_.emplace(
      PeriodicModelAveragerOptions{.period = kPeriod,
                                   .warmup_steps = start_of(steps),
                                   .group = model_.group()});
}

void GradientTraffic::step_done() {
  if (averager_) averager_->average_parameters(model_.parameters());
}

void GradientTraffic::settle() {
  if (averager_) average_tensors(*model_.group(), model_.parameters());
}

std::int64_t GradientTraffic::passes() const {
  return power_sgd_ ? power_sgd_->iteration() : 0;
}

void GradientTraffic::set_passes(std::int64_t passes) {
  if (power_sgd_) power_sgd_->set_iteration(passes);
}

std::optional<std::string> GradientTraffic::summary() const {
  if (!compression_) return std::nullopt;
  const CompressionReport report = compression_->report();
  if (report.compressed_passes == 0) return std::nullopt;
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << report.ratio()
       << " times fewer bytes than the gradients were sent; "
       << std::setprecision(report.relative_error < 0.01 ? 3 : 0)
       << 100 * report.relative_error
       << " % of their length was not sent in the last pass measured";
  return text.str();
}

}  // namespace lockstep
