// The description of a run: its options, from the table of flags, and its data
// for other ranks, which must have the same, and for checkpoints, which belong
// to one job.
//
// Threads: any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "apps/trainer/loop/trainer.h"
#include "src/comm/group/same_job.h"

namespace lockstep {

// The options in which all ranks agree, by the flags of `lockstep train`. Of
// paths, which only rank 0 uses, the ranks agree whether they are given; the
// index of a rank's device and the sinks of its output are its own.
std::vector<JobField> job_fields(const TrainerOptions& options);

// The same of the data: its title and its sizes.
std::vector<JobField> job_fields(const TrainingData& data);

// Lines for the start of a run about what its flags do not say: what it resumed
// from or began with, of which `result` must have the parts, and its stem.
std::vector<std::string> start_notes(const TrainerOptions& options,
                                     const TrainingData& data,
                                     const TrainingResult& result);

// What a checkpoint keeps to recognize its job: the options that determine
// which sample a position means and which tensors exist. All others may change
// between two parts of a run.
struct CheckpointedJob {
  std::map<std::string, std::string> properties;
  // Those that older checkpoints lack: TrainingState::job_defaults.
  std::map<std::string, std::string> defaults;
};
CheckpointedJob checkpointed_job(const TrainerOptions& options,
                                 const TrainingData& data);

}  // namespace lockstep
