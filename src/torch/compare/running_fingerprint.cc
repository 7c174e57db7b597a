#include <c10/util/StringUtil.h>

#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/consistency.h"
#include "src/torch/compare/replica_watch.h"

namespace lockstep {
namespace {

NamedTensorList replicated_tensors(const torch::nn::Module& module,
                                   const RunningFingerprintOptions& options) {
  NamedTensorList tensors = module.named_parameters().pairs();
  if (!options.buffers) return tensors;
  for (auto& buffer : module.named_buffers().pairs())
    tensors.push_back(std::move(buffer));
  return tensors;
}

constexpr char kUsual[] =
    "an optimizer's step, its state, or gradients differed between ranks; or "
    "weights were loaded or changed on some ranks";

}  // namespace

RunningFingerprint::RunningFingerprint(
    std::shared_ptr<const torch::nn::Module> module,
    const RunningFingerprintOptions& options)
    : module_(std::move(module)),
      group_(options.group ? options.group : default_group()),
      options_(options) {
  if (!module_) throw InvalidArgument("RunningFingerprint: the module is null");
  if (options.every < 1)
    throw InvalidArgument(
        c10::str("RunningFingerprint: replicas cannot be compared every ",
                 options.every, " steps; the minimum is 1"));
}

void RunningFingerprint::step_done() {
  ++step_;
  if (step_ % options_.every == 0) check();
}

void RunningFingerprint::check() {
  difference_.reset();
  if (group_->size() == 1) return;
  difference_ =
      find_difference(*group_, replicated_tensors(*module_, options_));
  if (difference_) throw_difference();
  last_equal_ = step_;
}

void RunningFingerprint::throw_difference() const {
  throw_replicas_differ(
      *group_, *difference_,
      {.when = c10::str("after step ", step_),
       .since = last_equal_ ? c10::str("after step ", *last_equal_)
                            : "never compared before",
       .likely = likely_cause(*difference_, kUsual),
       .next = "resume from an older checkpoint; compare each step with "
               "ConsistencyReport, or lockstep train --check-consistency"});
}

}  // namespace lockstep
