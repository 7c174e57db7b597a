// The graphs that have operations of a group, and the operations that are in a
// capture which has not ended.
//
// Threads: one at a time.
// Errors:  InvalidArgument for a graph that cannot be attached.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/comm/captured_graph.h"
#include "lockstep/comm/nccl/nccl_flight.h"

namespace lockstep {

class AttachedGraphs {
 public:
  // One that was captured. Its line can be in one capture at a time: those of
  // an earlier one, which nobody attached, are forgotten.
  void add(std::shared_ptr<NcclFlight> flight);

  // Null if it is in no capture, or in one whose graph is attached.
  std::shared_ptr<const NcclFlight> find(std::uint64_t ticket) const;

  // Makes the operations of `capture` those of `graph`.
  void attach(const std::shared_ptr<CapturedGraph>& graph,
              std::uint64_t capture);
  bool has(const CapturedGraph* graph) const;

  // Of all that somebody still has.
  void end() noexcept;

 private:
  std::map<std::uint64_t, std::shared_ptr<NcclFlight>> captured_;  // by ticket
  std::vector<std::weak_ptr<CapturedGraph>> graphs_;
};

}  // namespace lockstep
