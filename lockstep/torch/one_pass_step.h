// A sharded optimizer's step in one pass over memory, on ranks that reach each
// other's: gradients are averaged, and parameters updated and given to all,
// range by range, with nothing written in between.
//
// Parameters move to memory that all ranks reach when this is made, and keep
// their values. Small gradients are copied to such memory for the step; large
// ones are born there (see heap_allocator.h).
//
// Threads: single-threaded.
// Errors:  what ProcessGroup's operations throw.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/optimizer_shard.h"

namespace lockstep {

class OnePassStep {
 public:
  // `shard` must outlive it.
  OnePassStep(std::shared_ptr<ProcessGroup> group, OptimizerShard& shard);

  // Averages the gradients of all ranks and updates the parameters, but for
  // those that are `settled` already, alike on all ranks. To be called after
  // the shard's begin_piece(). Returns which are settled now: all, but for
  // those whose memory some rank does not reach, which are as they were. A
  // parameter without a gradient counts as one whose gradient is zero.
  std::vector<char> run(std::vector<char> settled);

 private:
  // Parameters of one data type: one operation carries them.
  struct OfType;
  struct Lists;

  void add(std::size_t parameter);
  void lay_out(OfType& type);
  void bring_home(const OfType& type);
  void run(const OfType& type, std::vector<char>& settled);
  Lists list(const OfType& type, const std::vector<char>& settled) const;

  std::shared_ptr<ProcessGroup> group_;
  OptimizerShard& shard_;
  std::vector<std::shared_ptr<OfType>> types_;
};

}  // namespace lockstep
