#include "lockstep/torch/running_fingerprint.h"

#include <c10/util/StringUtil.h>

#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "src/base/report_text.h"
#include "src/torch/verify/replica_difference.h"

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

std::string likely(const ReplicaDifference& difference) {
  if (difference.elements == 1 && difference.more_tensors == 0 &&
      difference.differing_bits == 1)
    return "one bit of memory flipped" +
           (difference.ranks_are_fewer ? " on " + name_ranks(difference.ranks)
                                       : std::string(", on one of the two")) +
           ": a fault of that machine's memory, or a stray write";
  if (difference.elements == 1 && difference.more_tensors == 0)
    return "something wrote to this element on one rank";
  return "an optimizer's step, its state, or gradients differed between "
         "ranks; or weights were loaded or changed on some ranks";
}

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
  const ReplicaDifference& found = *difference_;
  throw Mismatch(c10::str(
      "the replicas of group \"", group_->name(), "\" differ after step ",
      step_, " (seen on rank ", group_->rank(), " of ", group_->size(), ")",
      "\n  where:   ", describe(found), "\n  differ:  ",
      found.ranks_are_fewer
          ? name_ranks(found.ranks) + " from most"
          : name_ranks(found.ranks) + " from the others, without a majority",
      "\n  since:   ",
      last_equal_ ? "after step " + std::to_string(*last_equal_)
                  : std::string("never compared before"),
      "\n  likely:  ", likely(found),
      "\n  next:    resume from an older checkpoint; compare each step with "
      "ConsistencyReport, or lockstep train --check-consistency"));
}

}  // namespace lockstep
