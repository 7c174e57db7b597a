// The graphs that are attached to a group, and what of its operations they have
// captured.
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
  // Operations of `capture` are the graph's from now on.
  void attach(const std::shared_ptr<CapturedGraph>& graph,
              std::uint64_t capture);

  // Whether some graph has those of `capture`.
  bool takes(std::uint64_t capture) const;
  // One that is in its capture, which some graph takes.
  void add(std::shared_ptr<NcclFlight> flight);

  // Null if it was not captured, or its graph is no more.
  std::shared_ptr<const NcclFlight> find(std::uint64_t ticket) const;
  bool has(const CapturedGraph* graph) const;
  // Those that have operations, and that somebody still has.
  std::vector<std::shared_ptr<CapturedGraph>> with_operations() const;

 private:
  struct Attached {
    std::weak_ptr<CapturedGraph> graph;
    std::uint64_t capture = 0;
    std::uint64_t hash = 0;  // of what was added
    std::map<std::uint64_t, std::shared_ptr<NcclFlight>> flights;  // by ticket
  };

  std::vector<Attached> graphs_;
};

}  // namespace lockstep
