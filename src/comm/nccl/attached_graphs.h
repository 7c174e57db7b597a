// The graphs that are attached to a group, and the group's operations that they
// have captured.
//
// Threads: one thread at a time.
// Errors:  InvalidArgument for a graph that cannot be attached.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "src/comm/nccl/nccl_operation.h"
#include "src/comm/operation/captured_graph.h"

namespace lockstep {

class AttachedGraphs {
 public:
  // Adds operations of `capture` to the graph from now on.
  void attach(const std::shared_ptr<CapturedGraph>& graph,
              std::uint64_t capture);

  // Whether a graph takes operations of `capture`.
  bool takes(std::uint64_t capture) const;
  // Adds an operation whose capture a graph takes.
  void add(std::shared_ptr<NcclOperation> pending);

  // Null if the operation was not captured, or its graph is gone.
  std::shared_ptr<const NcclOperation> find(std::uint64_t ticket) const;
  bool has(const CapturedGraph* graph) const;
  // The graphs that still exist and have operations.
  std::vector<std::shared_ptr<CapturedGraph>> with_operations() const;

 private:
  struct Attached {
    std::weak_ptr<CapturedGraph> graph;
    std::uint64_t capture = 0;
    std::uint64_t hash = 0;  // of what was added
    std::map<std::uint64_t, std::shared_ptr<NcclOperation>>
        operations;  // by ticket
  };

  std::vector<Attached> graphs_;
};

}  // namespace lockstep
