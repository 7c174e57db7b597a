#include "src/comm/wire/collective.h"

#include <cstring>

#include "src/comm/wire/block_exchange.h"

namespace lockstep {
namespace {

constexpr std::size_t kSmallBytes = std::size_t{64} << 10;

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

bool is_uneven_all_to_all(const Operation& operation) {
  return operation.kind == OperationKind::kAllToAll &&
         operation.division == Division::kPerRank;
}

std::uint32_t hash_of(const Signature& signature) {
  std::array<std::uint64_t, sizeof(Signature) / sizeof(std::uint64_t)> words{};
  std::memcpy(words.data(), &signature, sizeof signature);
  std::uint64_t hash = 0;
  for (const std::uint64_t word : words) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  return static_cast<std::uint32_t>(hash);
}

}  // namespace

Collective::Collective(WireCore& core, ControlExchange& control,
                       const Operation& operation, Deadline deadline)
    : core_(core),
      control_(control),
      operation_(operation),
      deadline_(deadline),
      signature_(signature_of(operation)),
      routes_{operation, core.rank(), core.size()},
      element_bytes_(size_of(static_cast<DataType>(signature_.type))) {}

void Collective::run(CollectiveWay* way) {
  core_.scratch().reset();
  if (way != nullptr) {
    if (is_checked() && way->compare(core_, control_, operation_, deadline_))
      return;
    if (way->takes(operation_))
      return way->run(core_, operation_, tag(), deadline_);
  }
  if (is_inline()) return run_inline();
  if (is_checked() && (way == nullptr || is_uneven_all_to_all(operation_)))
    check_signatures();
  if (reduces(operation_.kind))
    return run_pipeline(operation_.kind == OperationKind::kReduceScatter
                            ? scatter_plan()
                            : reduction_plan());
  if (operation_.kind == OperationKind::kBroadcast)
    return run_pipeline(broadcast_plan());
  copy_own_block(routes_);
  exchange_blocks(core_, routes_, tag(), deadline_);
}

// Uses only values that are the same on all ranks.
bool Collective::is_inline() const {
  return !is_uneven_all_to_all(operation_) &&
         signature_.elements * element_bytes_ <= ControlExchange::kInlineBytes;
}

bool Collective::is_checked() const {
  if (is_inline()) return true;
  if (core_.check() == OperationCheck::kAll) return true;
  return core_.check() == OperationCheck::kSmall &&
         signature_.elements * element_bytes_ <= kSmallBytes;
}

// Messages of different operations must not be confused, even if the calls were
// not compared before.
int Collective::tag() const {
  const auto turn = static_cast<std::uint32_t>(operation_.sequence) & 0x3fff;
  return static_cast<int>(turn << 17 | (hash_of(signature_) & 0xffff) << 1);
}

void Collective::compare(std::span<const AnnouncedCall> calls) const {
  for (const AnnouncedCall& theirs : calls)
    if (theirs.signature != signature_)
      throw Mismatch(
          describe_mismatch(calls, core_.rank(), core_.identity().name));
}

void Collective::check_signatures() {
  const std::vector<std::int64_t> counts = counts_of(operation_);
  const auto bytes = std::as_bytes(std::span(counts));
  if (bytes.size() > ControlExchange::kInlineBytes)
    throw InvalidArgument(
        "all_to_all_v is limited to 1024 ranks; use all_to_all");
  compare(control_.run(
      control_.everyone(), announced_call_of(operation_),
      [&](int, std::span<std::byte> room) {
        if (!bytes.empty())
          std::memcpy(room.data(), bytes.data(), bytes.size());
        return bytes.size();
      },
      deadline_));
  if (!counts.empty()) {
    std::vector<std::vector<std::int64_t>> tables(at(core_.size()), counts);
    for (int r = 0; r < core_.size(); ++r)
      if (r != core_.rank())
        std::memcpy(tables[at(r)].data(), control_.extra(r), bytes.size());
    check_counts(operation_, tables, core_.identity().name);
  }
  control_.finish(deadline_);
}

void Collective::run_inline() {
  compare(control_.run(
      control_.everyone(), announced_call_of(operation_),
      [&](int to, std::span<std::byte> room) {
        const BufferSpan run = routes_.outgoing(to);
        const std::size_t bytes = total_bytes(run);
        copy_from(run, 0, room.first(bytes));
        return bytes;
      },
      deadline_));
  if (reduces(operation_.kind)) {
    combine_inline();
  } else {
    copy_own_block(routes_);
    for (int from = 0; from < core_.size(); ++from) {
      if (from == core_.rank()) continue;
      const BufferSpan run = routes_.incoming(from);
      copy_into(run, 0, {control_.extra(from), total_bytes(run)});
    }
  }
  control_.finish(deadline_);
}

void Collective::combine_inline() {
  const BufferSpan result = routes_.result();
  const std::size_t bytes = total_bytes(result);
  if (bytes == 0) return;
  std::vector<const std::byte*> sources(at(core_.size()));
  for (int r = 0; r < core_.size(); ++r)
    if (r != core_.rank()) sources[at(r)] = control_.extra(r);
  std::byte* own = core_.scratch().take(bytes);
  copy_from(routes_.outgoing(core_.rank()), 0, {own, bytes});
  sources[at(core_.rank())] = own;
  const ReduceKernel kernel = reduce_kernel(
      operation_.reduction, static_cast<DataType>(signature_.type));
  kernel(sources, std::span(&own, 1), bytes / element_bytes_);
  copy_into(result, 0, {own, bytes});
}

SharePlan Collective::empty_plan() const {
  SharePlan plan;
  plan.contributions.resize(at(core_.size()));
  plan.results.resize(at(core_.size()));
  plan.element_bytes = element_bytes_;
  if (!reduces(operation_.kind)) return plan;
  plan.kernel = reduce_kernel(operation_.reduction,
                              static_cast<DataType>(signature_.type));
  for (int step = 1; step < core_.size(); ++step)
    plan.sources.push_back((core_.rank() + step) % core_.size());
  return plan;
}

// all_reduce and reduce: even shares; all ranks, or the root, get the results.
SharePlan Collective::reduction_plan() const {
  SharePlan plan = empty_plan();
  const auto ranks = static_cast<std::uint64_t>(core_.size());
  const bool to_all = operation_.kind == OperationKind::kAllReduce;
  const bool is_audience = to_all || core_.rank() == operation_.root;
  for (int owner = 0; owner < core_.size(); ++owner) {
    const std::uint64_t o = at(owner);
    const std::uint64_t begin = signature_.elements * o / ranks;
    const std::uint64_t end = signature_.elements * (o + 1) / ranks;
    const PipelineShare share{{operation_.outputs},
                              begin * element_bytes_,
                              (end - begin) * element_bytes_};
    plan.contributions[o] = share;
    if (is_audience || owner == core_.rank()) plan.results[o] = share;
    if (owner != core_.rank() && (to_all || owner == operation_.root))
      plan.audience.push_back(owner);
  }
  plan.own = is_audience ? SharePlan::Own::kKept : SharePlan::Own::kPassedOn;
  return plan;
}

// reduce_scatter: each rank keeps its own share.
SharePlan Collective::scatter_plan() const {
  SharePlan plan = empty_plan();
  for (int owner = 0; owner < core_.size(); ++owner) {
    const BufferSpan run = routes_.outgoing(owner);
    plan.contributions[at(owner)] = {run, 0, total_bytes(run)};
  }
  const BufferSpan result = routes_.result();
  plan.results[at(core_.rank())] = {result, 0, total_bytes(result)};
  return plan;
}

// broadcast: each rank except the root owns a share, and passes it on.
SharePlan Collective::broadcast_plan() const {
  SharePlan plan = empty_plan();
  const bool is_root = core_.rank() == operation_.root;
  const auto owners = static_cast<std::uint64_t>(core_.size() - 1);
  std::uint64_t index = 0;
  for (int owner = 0; owner < core_.size(); ++owner) {
    if (owner == operation_.root) continue;
    const std::uint64_t begin = signature_.elements * index / owners;
    const std::uint64_t end = signature_.elements * (index + 1) / owners;
    const PipelineShare share{{operation_.outputs},
                              begin * element_bytes_,
                              (end - begin) * element_bytes_};
    (is_root ? plan.contributions : plan.results)[at(owner)] = share;
    if (!is_root && owner != core_.rank()) plan.audience.push_back(owner);
    ++index;
  }
  if (!is_root) plan.sources = {operation_.root};
  return plan;
}

void Collective::run_pipeline(const SharePlan& plan) {
  SharePipeline(core_, plan, tag(), deadline_).run();
}

void run_alone(const Operation& operation) {
  const Routes routes{operation, 0, 1};
  if (!reduces(operation.kind)) return copy_own_block(routes);
  const BufferSpan result = routes.result();
  BufferCursor from(routes.outgoing(0));
  BufferCursor to(result);
  if (from.here() != to.here()) copy(from, to, total_bytes(result));
}

}  // namespace lockstep
