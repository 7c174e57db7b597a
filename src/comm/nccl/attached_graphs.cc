#include "src/comm/nccl/attached_graphs.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kEmptyHash = 0xcbf29ce484222325;

// FNV-1a over the values on which ranks must agree. It includes the number of a
// collective, so that graphs of equal operations differ: NCCL needs the same
// graph on every rank.
void add_to_hash(std::uint64_t& hash, const Signature& signature) {
  for (const std::uint64_t part :
       {signature.sequence, signature.elements, std::uint64_t{signature.layout},
        std::uint64_t{signature.kind}, std::uint64_t{signature.type},
        std::uint64_t{signature.reduction}, std::uint64_t{signature.division},
        static_cast<std::uint64_t>(signature.root),
        std::uint64_t{signature.buffers}}) {
    hash ^= part;
    hash *= 0x100000001b3;
  }
}

}  // namespace

void AttachedGraphs::attach(const std::shared_ptr<CapturedGraph>& graph,
                            std::uint64_t capture) {
  if (graph->is_attached())
    throw InvalidArgument(
        "attach: the graph is attached to a group already, and holds the "
        "operations of one group only\n  next:    use one group per capture, "
        "and a new graph for each capture");
  std::erase_if(graphs_,
                [](const Attached& known) { return known.graph.expired(); });
  graph->set_contents({});
  graphs_.push_back({graph, capture, kEmptyHash, {}});
}

bool AttachedGraphs::takes(std::uint64_t capture) const {
  return std::ranges::any_of(graphs_, [&](const Attached& known) {
    return known.capture == capture && !known.graph.expired();
  });
}

void AttachedGraphs::add(std::shared_ptr<NcclOperation> pending) {
  const auto known =
      std::ranges::find(graphs_, pending->capture, &Attached::capture);
  if (known == graphs_.end()) return;
  add_to_hash(known->hash, signature_of(pending->operation));
  known->operations.emplace(pending->ticket, std::move(pending));
  const auto graph = known->graph.lock();
  if (!graph) return;
  graph->set_contents(
      {.operations = static_cast<std::uint32_t>(known->operations.size()),
       .hash = static_cast<std::uint32_t>(known->hash ^ (known->hash >> 32))});
}

std::shared_ptr<const NcclOperation> AttachedGraphs::find(
    std::uint64_t ticket) const {
  for (const Attached& known : graphs_)
    if (const auto found = known.operations.find(ticket);
        found != known.operations.end())
      return found->second;
  return nullptr;
}

bool AttachedGraphs::has(const CapturedGraph* graph) const {
  return std::ranges::any_of(graphs_, [&](const Attached& known) {
    return known.graph.lock().get() == graph;
  });
}

std::vector<std::shared_ptr<CapturedGraph>> AttachedGraphs::with_operations()
    const {
  std::vector<std::shared_ptr<CapturedGraph>> graphs;
  for (const Attached& known : graphs_)
    if (auto graph = known.graph.lock(); graph && !known.operations.empty())
      graphs.push_back(std::move(graph));
  return graphs;
}

}  // namespace lockstep
