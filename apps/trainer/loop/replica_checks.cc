#include "apps/trainer/loop/replica_checks.h"

#include "lockstep/base/error.h"
#include "src/torch/verify/consistency_table.h"

namespace lockstep {

ReplicaChecks::ReplicaChecks(const ReplicaChecksOptions& options,
                             const DistributedDataParallel<Classifier>& model,
                             bool optimizer_averages, std::int64_t steps_done)
    : options_(options), prints_(model.group()->rank() == 0 && options.print) {
  if (options.consistency_steps < 0 || options.fingerprint_every < 0)
    throw InvalidArgument(
        "the numbers of steps to check and from one fingerprint to the next "
        "cannot be negative");
  if (options.consistency_steps > 0) {
    report_.emplace(
        model.module(),
        ConsistencyReportOptions{.group = model.group(),
                                 .steps = options.consistency_steps,
                                 .reduced_gradients = optimizer_averages
                                                          ? Expected::kEither
                                                          : Expected::kEqual,
                                 .show = options.show});
    print_table();
  }
  if (options.fingerprint_every > 0) {
    fingerprint_.emplace(
        model.module(),
        RunningFingerprintOptions{.group = model.group(),
                                  .every = options.fingerprint_every});
    fingerprint_->set_step(steps_done);
  }
}

// Stops a run that is wrong from the start.
void ReplicaChecks::print_table() {
  const std::string text = report_->take_text();
  if (prints_ && !text.empty()) options_.print(text);
  if (const auto& verdict = report_->verdict())
    throw Mismatch(text_of(*verdict));
}

void ReplicaChecks::step_done() {
  if (report_ && !report_->done()) {
    report_->step_done();
    print_table();
  }
  if (fingerprint_) fingerprint_->step_done();
}

}  // namespace lockstep
