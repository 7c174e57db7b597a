#include "src/comm/hybrid/hybrid_way.h"

#include <algorithm>
#include <utility>

#include "src/comm/hybrid/chunks.h"
#include "src/comm/wire/share_pipeline.h"

namespace lockstep {
namespace {

std::size_t at(int number) { return static_cast<std::size_t>(number); }

// One operation in progress. Each chunk takes three steps: the first inside the
// host, the second on the wire, the last inside the host.
class Passage {
 public:
  struct Parts {
    WireCore& core;
    const HostMap& hosts;
    HostGroup& here;
    const Operation& operation;
    Deadline deadline;
  };

  Passage(const Parts& parts, const Chunks::Places& places)
      : parts_(parts),
        reducing_(reduces(parts.operation.kind)),
        host_(parts.hosts.host_of[at(parts.core.rank())]),
        index_(parts.hosts.index_of[at(parts.core.rank())]),
        root_host_(parts.hosts.host_of[at(parts.operation.root)]),
        blocks_(parts.hosts.fewest()),
        chunks_(parts.operation.outputs,
                {at(blocks_),
                 at(reducing_ ? parts.hosts.hosts() : parts.hosts.hosts() - 1)},
                places),
        first_(chunks_.size()),
        last_(chunks_.size()) {}

  void run(int tag) {
    SharePlan plan = wire_plan();
    plan.before = [this](std::size_t c) { prepare(c); };
    plan.after = [this](std::size_t c) { finish(c); };
    SharePipeline(parts_.core, plan, tag, parts_.deadline).run();
    complete_last(chunks_.size());
  }

  // All works that were started inside the host.
  std::vector<Work> works() const {
    std::vector<Work> all = first_;
    all.insert(all.end(), last_.begin(), last_.end());
    return all;
  }

 private:
  bool is_source() const { return !reducing_ && host_ == root_host_; }
  bool is_on_the_wire() const { return index_ < blocks_; }

  void prepare(std::size_t c);
  void start_first(std::size_t c);
  void finish(std::size_t c);
  void complete_last(std::size_t end);
  void wait_inside(const Work& work) {
    parts_.here.wait(parts_.core, work, parts_.deadline);
  }
  Work move_blocks(OperationKind kind, std::size_t c);
  Work broadcast_chunk(std::size_t c);
  SharePlan wire_plan();
  void plan_reduction(SharePlan& plan);
  void plan_broadcast(SharePlan& plan);
  PipelineShare pieces(int number);

  const Parts parts_;
  const bool reducing_;
  const int host_, index_;  // this rank's
  const int root_host_;     // of a broadcast
  const int blocks_;
  const Chunks chunks_;
  // The works of the first and the last step of each chunk.
  std::vector<Work> first_, last_;
  std::size_t completed_ = 0;  // completed chunks
  // The parts of each piece number that the wire moves, in all chunks.
  std::vector<std::vector<Buffer>> pieces_;
};

// Called before a chunk goes on the wire; also begins the next chunk's first
// step.
void Passage::prepare(std::size_t c) {
  if (c == 0) start_first(0);
  if (c + 1 < chunks_.size()) start_first(c + 1);
  wait_inside(first_[c]);
}

void Passage::start_first(std::size_t c) {
  if (c >= Chunks::kPlaces) complete_last(c - Chunks::kPlaces + 1);
  if (reducing_ || parts_.core.rank() == parts_.operation.root)
    chunks_.fetch(c);
  if (reducing_) first_[c] = move_blocks(OperationKind::kReduceScatter, c);
  if (is_source()) first_[c] = broadcast_chunk(c);
}

// Called when a chunk has come from the wire.
void Passage::finish(std::size_t c) {
  if (!is_source()) last_[c] = move_blocks(OperationKind::kAllGather, c);
  complete_last(c);
}

void Passage::complete_last(std::size_t end) {
  for (; completed_ < end; ++completed_) {
    wait_inside(last_[completed_]);
    chunks_.put_back(completed_);
  }
}

// Reduces a chunk within the host, so that each rank has its block, or gathers
// the blocks again.
Work Passage::move_blocks(OperationKind kind, std::size_t c) {
  std::vector<Buffer> blocks;
  for (int b = 0; b < parts_.here.size(); ++b)
    blocks.push_back(chunks_.block(c, at(b)));
  const Buffer own = blocks[at(index_)];
  Operation operation = within_host(kind, parts_.operation, parts_.deadline);
  operation.division = Division::kPerRank;
  (reduces(kind) ? operation.inputs : operation.outputs) = blocks;
  (reduces(kind) ? operation.outputs : operation.inputs) = {&own, 1};
  return parts_.here.start(operation);
}

Work Passage::broadcast_chunk(std::size_t c) {
  const Buffer whole = chunks_.whole(c);
  Operation operation =
      within_host(OperationKind::kBroadcast, parts_.operation, parts_.deadline);
  operation.root = parts_.hosts.index_of[at(parts_.operation.root)];
  operation.outputs = {&whole, 1};
  return parts_.here.start(operation);
}

// The pieces `number` of this rank's block in all chunks, as one share.
PipelineShare Passage::pieces(int number) {
  std::vector<Buffer>& buffers = pieces_[at(number)];
  std::size_t bytes = 0;
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    buffers.push_back(chunks_.piece(c, at(index_), at(number)));
    bytes += buffers.back().bytes();
  }
  return {{buffers}, 0, bytes};
}

SharePlan Passage::wire_plan() {
  SharePlan plan;
  plan.contributions.resize(at(parts_.core.size()));
  plan.results.resize(at(parts_.core.size()));
  plan.segment_bytes = chunks_.piece_bytes();
  plan.segments = chunks_.size();
  pieces_.resize(at(parts_.hosts.hosts()));
  if (!is_on_the_wire()) return plan;
  if (reducing_)
    plan_reduction(plan);
  else
    plan_broadcast(plan);
  return plan;
}

void Passage::plan_reduction(SharePlan& plan) {
  const DataType type = parts_.operation.outputs.front().type;
  plan.kernel = reduce_kernel(parts_.operation.reduction, type);
  plan.element_bytes = size_of(type);
  for (int host = 0; host < parts_.hosts.hosts(); ++host) {
    const int owner = parts_.hosts.ranks_of[at(host)][at(index_)];
    plan.contributions[at(owner)] = pieces(host);
    plan.results[at(owner)] = plan.contributions[at(owner)];
    if (host == host_) continue;
    plan.sources.push_back(owner);
    plan.audience.push_back(owner);
  }
}

void Passage::plan_broadcast(SharePlan& plan) {
  const int source = parts_.hosts.ranks_of[at(root_host_)][at(index_)];
  int number = 0;
  for (int host = 0; host < parts_.hosts.hosts(); ++host) {
    if (host == root_host_) continue;
    const int owner = parts_.hosts.ranks_of[at(host)][at(index_)];
    const PipelineShare share = pieces(number++);
    (is_source() ? plan.contributions : plan.results)[at(owner)] = share;
    if (!is_source() && host != host_) plan.audience.push_back(owner);
  }
  if (!is_source()) plan.sources = {source};
}

}  // namespace

HybridWay::HybridWay(const GroupIdentity& identity, HostMap hosts, Store& store,
                     const Settings& settings)
    : HybridWay(identity.rank, hosts,
                HostGroup(identity, hosts.host_of[at(identity.rank)],
                          hosts.ranks_of[at(hosts.host_of[at(identity.rank)])],
                          store, settings)) {}

HybridWay::HybridWay(int rank, HostMap hosts, HostGroup here)
    : rank_(rank),
      hosts_(std::move(hosts)),
      here_(std::move(here)),
      exchange_(rank, hosts_, here_) {}

std::unique_ptr<CollectiveWay> HybridWay::duplicate(
    const GroupIdentity& identity, int number) const {
  return std::make_unique<HybridWay>(rank_, hosts_,
                                     here_.duplicate(identity, number));
}

bool HybridWay::compare(WireCore& core, ControlExchange& control,
                        const Operation& operation, Deadline deadline) {
  try {
    return exchange_.run(core, control, operation, deadline);
  } catch (...) {
    abandoned_ = {exchange_.take_abandoned()};
    throw;
  }
}

bool HybridWay::takes(const Operation& operation) const {
  return operation.kind == OperationKind::kBroadcast ||
         is_reduced_by_host(operation, hosts_);
}

void HybridWay::run(WireCore& core, const Operation& operation, int tag,
                    Deadline deadline) {
  const auto places = [this](std::size_t bytes) {
    if (staging_bytes_ < bytes) staging_ = here_.allocate(bytes);
    staging_bytes_ = std::max(staging_bytes_, bytes);
    return staging_.get();
  };
  Passage passage({core, hosts_, here_, operation, deadline}, places);
  try {
    passage.run(tag);
  } catch (...) {
    abandoned_ = passage.works();
    throw;
  }
}

void HybridWay::calm_down() noexcept {
  for (const Work& work : abandoned_) HostGroup::forget(work);
  abandoned_.clear();
}

}  // namespace lockstep
