#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/training_loop.h"
#include "src/comm/diagnosis/recorder.h"
#include "src/comm/group/group_core.h"

namespace lockstep {
namespace {

// Null where no launcher lists the job.
StepWriter* step_writer_of(const ProcessGroup& group, pid_t owner) {
  // A forked child would write its parent's steps.
  if (::getpid() != owner) return nullptr;
  const auto& world = group.core().world();
  return world ? world->recorder()->steps() : nullptr;
}

}  // namespace

StepReport::StepReport(std::shared_ptr<ProcessGroup> group)
    : group_(std::move(group)), process_(::getpid()) {
  if (!group_) throw InvalidArgument("StepReport needs a group");
  StepWriter* const steps = step_writer_of(*group_, process_);
  if (steps == nullptr) return;
  steps->report_by_program();
  // The program may never tell when it has its data.
  steps->begin_data(group_->time_waited());
}

StepReport::~StepReport() {
  if (StepWriter* const steps = step_writer_of(*group_, process_))
    steps->end_report_by_program();
}

void StepReport::data_ready() {
  StepWriter* const steps = step_writer_of(*group_, process_);
  if (steps == nullptr) return;
  reports_data_ = true;
  steps->data_ready(group_->time_waited());
}

void StepReport::step_done(std::int64_t samples) {
  if (samples < 0)
    throw InvalidArgument(
        fmt::format("StepReport: a step cannot have {} samples", samples));
  StepWriter* const steps = step_writer_of(*group_, process_);
  if (steps == nullptr) return;
  steps->step_done(samples, group_->time_waited());
  if (reports_data_) steps->data_wanted(group_->time_waited());
}

}  // namespace lockstep
