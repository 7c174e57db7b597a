#include "src/comm/testing/program_rank.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "lockstep/comm/groups.h"
#include "src/comm/testing/any_collective.h"
#include "src/comm/testing/random_elements.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMostInFlight = 12;
// Long enough to never pass in a test that works.
const CallOptions kTimeout{.timeout = 2min};

std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t hash) {
  for (const std::byte byte : bytes) {
    hash ^= std::to_integer<std::uint64_t>(byte);
    hash *= 0x100000001b3;  // FNV-1a
  }
  return hash;
}

// Uneven: the elements that each rank has for each other, or of its own,
// derived from the most.
std::int64_t uneven_count(const Step& step, int from, int to) {
  if (step.kind == OperationKind::kAllGather) to = 0;
  if (step.kind == OperationKind::kReduceScatter) from = 0;
  const auto mixed =
      mix_bits(step.seed + static_cast<std::uint64_t>(64 * from + to));
  return static_cast<std::int64_t>(
      mixed % static_cast<std::uint64_t>(step.counts[0] + 1));
}

ListSizes sizes_of(const Step& step, const ProcessGroup& group) {
  ListSizes sizes{.kind = step.kind, .ranks = group.size()};
  if (step.division == Division::kEven)
    sizes.own = step.counts;
  else
    sizes.uneven = [&step](int from, int to) {
      return uneven_count(step, from, to);
    };
  return sizes;
}

Counts input_counts(const Step& step, const ProcessGroup& group) {
  if (works_in_place(step.kind)) return {};
  return sizes_of(step, group).brought(group.rank());
}

Counts output_counts(const Step& step, const ProcessGroup& group) {
  if (step.kind == OperationKind::kGather && group.rank() != step.root)
    return {};
  return sizes_of(step, group).gained(group.rank());
}

}  // namespace

// The buffers of one operation, and their contents.
class ProgramRank::Memory {
 public:
  struct Kind {
    DataType type;
    Elements elements;
  };
  Memory(ProcessGroup& group, const Kind& kind, std::uint64_t random)
      : group_(group),
        type_(kind.type),
        elements_(kind.elements),
        random_(random),
        salt_(random) {}

  Buffer add(std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(type_);
    random_ = mix_bits(random_ + 1);
    blocks_.push_back(
        random_ % 2 == 0
            ? group_.allocate(bytes)
            : std::shared_ptr<std::byte>(new std::byte[bytes](),
                                         std::default_delete<std::byte[]>()));
    buffers_.push_back({blocks_.back().get(), count, type_});
    return buffers_.back();
  }
  std::vector<Buffer> add(const Counts& counts) {
    std::vector<Buffer> added;
    for (const std::int64_t count : counts) added.push_back(add(count));
    return added;
  }

  void fill(const Buffer& buffer) {
    auto* const at = static_cast<std::byte*>(buffer.data);
    const std::size_t size = size_of(type_);
    for (std::size_t i = 0; i < buffer.bytes(); i += size)
      store_element(type_, random_ = mix_bits(random_ + 1), at + i, elements_);
  }
  void fill(const std::vector<Buffer>& buffers) {
    for (const Buffer& buffer : buffers) fill(buffer);
  }

  // Distinguishes equal elements in different operations' buffers.
  std::uint64_t hash() const {
    std::uint64_t hash = salt_;
    for (const Buffer& buffer : buffers_)
      hash = hash_of(
          {static_cast<const std::byte*>(buffer.data), buffer.bytes()}, hash);
    return hash;
  }

 private:
  ProcessGroup& group_;
  DataType type_;
  Elements elements_;
  std::uint64_t random_;
  std::uint64_t salt_;
  std::vector<std::shared_ptr<std::byte>> blocks_;
  std::vector<Buffer> buffers_;
};

struct ProgramRank::InFlight {
  std::size_t step = 0;
  int group = 0;
  bool is_message = false;
  Work work;
  std::unique_ptr<Memory> memory;
};

ProgramRank::ProgramRank(std::shared_ptr<ProcessGroup> world,
                         std::uint64_t seed, Elements elements)
    : rank_(world->rank()), elements_(elements), program_(seed, world->size()) {
  groups_[0] = std::move(world);
}

ProgramRank::~ProgramRank() = default;

std::vector<std::uint64_t> ProgramRank::run(std::size_t steps) {
  results_.assign(steps, 0);
  for (std::size_t i = 0; i < steps; ++i) {
    carry_out(program_.next());
    if (in_flight_.size() > kMostInFlight) wait_for(0);
  }
  while (!in_flight_.empty()) wait_for(0);
  return results_;
}

void ProgramRank::carry_out(const Step& step) {
  const auto found = groups_.find(step.group);
  if (found == groups_.end()) return;
  ProcessGroup& group = *found->second;
  switch (step.what) {
    case Step::What::kCollective:
      return start_collective(step, group);
    case Step::What::kMessages:
      return start_envelopes(step, group);
    case Step::What::kFromAnySource:
      return take_from_any_source(step, group);
    case Step::What::kObjects:
      return exchange_objects(step, group);
    case Step::What::kNewGroup:
    case Step::What::kSplit:
      return make_groups(step);
    case Step::What::kDropGroup:
      wait_for_group(step.group);
      groups_.erase(found);
      return;
    case Step::What::kWait:
      return wait_for_some(
          mix_bits(step.seed + static_cast<std::uint64_t>(rank_)));
  }
}

void ProgramRank::start_collective(const Step& step, ProcessGroup& group) {
  auto memory =
      std::make_unique<Memory>(group, Memory::Kind{step.type, elements_},
                               step.seed + static_cast<std::uint64_t>(rank_));
  auto inputs = memory->add(input_counts(step, group));
  auto outputs = memory->add(output_counts(step, group));
  const bool scatters = has_blocks_in(step.kind);
  if (step.own == Step::Own::kInPlace &&
      scatters != has_blocks_out(step.kind)) {
    auto& own = scatters ? outputs : inputs;
    const auto& blocks = scatters ? inputs : outputs;
    const bool whole =
        blocks.size() == own.size();  // false if only the root has blocks
    for (std::size_t i = 0; whole && i < own.size(); ++i)
      own[i].data = static_cast<std::byte*>(blocks[i].data) +
                    static_cast<std::size_t>(group.rank()) * own[i].bytes();
  }
  memory->fill(works_in_place(step.kind) ? outputs : inputs);
  const AnyCollective collective{.kind = step.kind,
                                 .division = step.division,
                                 .reduction = step.reduction,
                                 .root = step.root};
  Work work = collective.start(group, inputs, outputs, kTimeout);
  keep(step, std::move(work), std::move(memory));
}

void ProgramRank::start_envelopes(const Step& step, ProcessGroup& group) {
  std::vector<Message> batch;
  std::vector<std::unique_ptr<Memory>> memories;
  const auto me = static_cast<std::uint64_t>(rank_);
  // Half of the ranks use another order: only tags match the messages.
  std::vector<Step::Envelope> envelopes = step.envelopes;
  if (group.rank() % 2 == 0)
    std::ranges::stable_sort(envelopes, {}, &Step::Envelope::tag);
  for (const Step::Envelope& envelope : envelopes) {
    const bool sends = envelope.from == group.rank();
    if (!sends && envelope.to != group.rank()) continue;
    auto& memory = memories.emplace_back(std::make_unique<Memory>(
        group, Memory::Kind{step.type, elements_},
        mix_bits(step.seed + memories.size() + 64 * me)));
    const Buffer buffer = memory->add(envelope.count);
    if (sends) memory->fill(buffer);
    batch.push_back(
        {sends ? Message::Direction::kSend : Message::Direction::kReceive,
         buffer, sends ? envelope.to : envelope.from, envelope.tag});
  }
  std::vector<Work> works = group.batch_isend_irecv(batch, kTimeout);
  for (std::size_t i = 0; i < works.size(); ++i) {
    in_flight_.push_back({.step = step.index,
                          .group = step.group,
                          .is_message = true,
                          .work = std::move(works[i]),
                          .memory = std::move(memories[i])});
  }
  if (step.finish == Step::Finish::kAtOnce) wait_for_messages();
}

// Messages may come in any order: their sum represents them.
void ProgramRank::take_from_any_source(const Step& step, ProcessGroup& group) {
  for (const Step::Envelope& envelope : step.envelopes) {
    const bool sends = envelope.from == group.rank();
    Memory memory(
        group, Memory::Kind{step.type, elements_},
        step.seed + static_cast<std::uint64_t>(sends ? rank_ + 1 : 0));
    const Buffer buffer = memory.add(envelope.count);
    if (sends) {
      memory.fill(buffer);
      group.send(buffer, envelope.to, envelope.tag, kTimeout);
    } else if (envelope.to == group.rank()) {
      const int source = group.recv(buffer, kAnySource, envelope.tag, kTimeout);
      add_result(step.index,
                 mix_bits(memory.hash() + static_cast<std::uint64_t>(source)));
    }
  }
}

void ProgramRank::exchange_objects(const Step& step, ProcessGroup& group) {
  const auto size_here = (step.seed + static_cast<std::uint64_t>(rank_)) % 900;
  const Bytes mine(size_here, static_cast<std::byte>(rank_ + 1));
  if (step.finish == Step::Finish::kAtOnce) {
    const Bytes theirs = broadcast_bytes(group, mine, step.root, kTimeout);
    return add_result(step.index, hash_of(theirs, 1));
  }
  for (const Bytes& object : all_gather_bytes(group, mine, kTimeout))
    add_result(step.index, hash_of(object, 1));
}

void ProgramRank::make_groups(const Step& step) {
  ProcessGroup& parent = *groups_.at(step.group);
  if (step.what == Step::What::kSplit) {
    const Color mine = step.colors[static_cast<std::size_t>(parent.rank())];
    auto group = split(parent, mine);
    if (group->is_member())
      groups_[step.made[static_cast<std::size_t>(mine.color)]] =
          std::move(group);
    return;
  }
  auto group = new_group(parent, step.ranks);
  if (group->is_member()) groups_[step.made[0]] = std::move(group);
}

void ProgramRank::keep(const Step& step, Work work,
                       std::unique_ptr<Memory> memory) {
  in_flight_.push_back({.step = step.index,
                        .group = step.group,
                        .work = std::move(work),
                        .memory = std::move(memory)});
  if (step.finish == Step::Finish::kAtOnce) wait_for(in_flight_.size() - 1);
}

void ProgramRank::wait_for_some(std::uint64_t seed) {
  for (std::size_t i = in_flight_.size(); i-- > 0;)
    if (!in_flight_[i].is_message && mix_bits(seed + i) % 3 != 0) wait_for(i);
  if (seed % 2 == 0) wait_for_messages();
}

// In posting order: the reference backend takes a message when the rank waits
// for its receive.
void ProgramRank::wait_for_messages() {
  for (std::size_t i = 0; i < in_flight_.size();)
    if (in_flight_[i].is_message)
      wait_for(i);
    else
      ++i;
}

void ProgramRank::wait_for_group(int group) {
  for (std::size_t i = 0; i < in_flight_.size();)
    if (in_flight_[i].group == group)
      wait_for(i);
    else
      ++i;
}

void ProgramRank::wait_for(std::size_t position) {
  const InFlight one = std::move(in_flight_[position]);
  in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(position));
  one.work.wait();
  add_result(one.step, one.memory->hash());
}

// Sums, because a rank may wait for the parts of a step in any order.
void ProgramRank::add_result(std::size_t step, std::uint64_t hash) {
  results_[step] += mix_bits(hash);
}

}  // namespace lockstep
