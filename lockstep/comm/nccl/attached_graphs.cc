#include "lockstep/comm/nccl/attached_graphs.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// FNV-1a over what ranks must agree on.
void add_to_hash(std::uint64_t& hash, const Signature& signature) {
  for (const std::uint64_t part :
       {signature.elements, std::uint64_t{signature.layout},
        std::uint64_t{signature.kind}, std::uint64_t{signature.type},
        std::uint64_t{signature.reduction}, std::uint64_t{signature.division},
        static_cast<std::uint64_t>(signature.root),
        std::uint64_t{signature.buffers}}) {
    hash ^= part;
    hash *= 0x100000001b3;
  }
}

}  // namespace

void AttachedGraphs::add(std::shared_ptr<NcclFlight> flight) {
  std::erase_if(captured_, [&](const auto& entry) {
    return entry.second->capture != flight->capture;
  });
  captured_.emplace(flight->ticket, std::move(flight));
}

std::shared_ptr<const NcclFlight> AttachedGraphs::find(
    std::uint64_t ticket) const {
  const auto found = captured_.find(ticket);
  return found == captured_.end() ? nullptr : found->second;
}

void AttachedGraphs::attach(const std::shared_ptr<CapturedGraph>& graph,
                            std::uint64_t capture) {
  if (graph->contents().operations > 0)
    throw InvalidArgument(
        "the graph has operations of a group already, and can have those of "
        "one alone\n  next:    use one group in what is captured");
  CapturedGraph::Contents contents;
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const auto& [ticket, flight] : captured_) {
    if (flight->capture != capture) continue;
    add_to_hash(hash, signature_of(flight->operation));
    ++contents.operations;
  }
  contents.hash = static_cast<std::uint32_t>(hash ^ (hash >> 32));
  graph->set_contents(contents);
  captured_.clear();
  std::erase_if(graphs_, [](const auto& known) { return known.expired(); });
  if (contents.operations > 0) graphs_.push_back(graph);
}

bool AttachedGraphs::has(const CapturedGraph* graph) const {
  return std::ranges::any_of(
      graphs_, [&](const auto& known) { return known.lock().get() == graph; });
}

void AttachedGraphs::end() noexcept {
  for (const auto& known : std::exchange(graphs_, {}))
    if (const auto graph = known.lock()) graph->end();
  captured_.clear();
}

}  // namespace lockstep
