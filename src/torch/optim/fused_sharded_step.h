// A sharded optimizer's step in one pass over memory, for ranks that map each
// other's memory: each rank averages gradients, updates parameters and writes
// them to all ranks, range by range, without intermediate writes.
//
// The constructor moves parameters to memory that all ranks map; they keep
// their values. Small gradients are copied to such memory for the step; large
// ones are allocated there (see heap_allocator.h).
//
// Threads: single-threaded.
// Errors:  what ProcessGroup's operations throw.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "src/torch/optim/optimizer_shard.h"

namespace lockstep {

class FusedShardedStep {
 public:
  // `shard` must outlive it.
  FusedShardedStep(std::shared_ptr<ProcessGroup> group, OptimizerShard& shard);

  // Averages the gradients of all ranks and updates the parameters, except
  // those that are `settled` already, the same on all ranks. Call it after the
  // shard's begin_piece(). Returns which parameters are settled now: all except
  // those whose memory some rank cannot map; these are unchanged. A missing
  // gradient counts as zero.
  std::vector<char> run(std::vector<char> settled);

 private:
  // Parameters of one data type, which one operation updates.
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
