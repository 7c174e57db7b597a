#include "fault_calls.h"

#include <algorithm>
#include <cstdint>

namespace lockstep {
namespace {

// Sums would grow without bound; a maximum does not.
constexpr ReduceOp kReduction = ReduceOp::kMax;

Buffer floats(const std::shared_ptr<float>& memory, std::int64_t count,
              std::int64_t offset = 0) {
  return {.data = memory.get() + offset,
          .count = count,
          .type = DataType::kFloat32};
}

std::vector<Buffer> block_a_rank(const std::shared_ptr<float>& memory,
                                 std::int64_t per_rank, int ranks) {
  std::vector<Buffer> blocks;
  for (int rank = 0; rank < ranks; ++rank)
    blocks.push_back(floats(memory, per_rank, rank * per_rank));
  return blocks;
}

}  // namespace

std::string_view name_of(Call call) {
  switch (call) {
    case Call::kBarrier:
      return "barrier";
    case Call::kBroadcast:
      return "broadcast";
    case Call::kAllReduce:
      return "all_reduce";
    case Call::kReduce:
      return "reduce";
    case Call::kAllGather:
      return "all_gather";
    case Call::kAllGatherV:
      return "all_gather_v";
    case Call::kGather:
      return "gather";
    case Call::kScatter:
      return "scatter";
    case Call::kReduceScatter:
      return "reduce_scatter";
    case Call::kReduceScatterV:
      return "reduce_scatter_v";
    case Call::kAllToAll:
      return "all_to_all";
    case Call::kAllToAllV:
      return "all_to_all_v";
  }
  return "unknown call";
}

CallMemory CallMemory::shared(ProcessGroup& group, std::int64_t elements) {
  const auto block = [&] {
    const auto bytes =
        group.allocate(static_cast<std::size_t>(elements) * sizeof(float));
    return std::shared_ptr<float>(bytes, reinterpret_cast<float*>(bytes.get()));
  };
  return {.elements = elements, .in = block(), .out = block()};
}

CallMemory CallMemory::ordinary(std::int64_t elements) {
  const auto block = [&] {
    const auto floats = std::make_shared<std::vector<float>>(elements);
    return std::shared_ptr<float>(floats, floats->data());
  };
  return {.elements = elements, .in = block(), .out = block()};
}

void CallMemory::fill(float value) const {
  std::fill_n(in.get(), elements, value);
  std::fill_n(out.get(), elements, value);
}

std::int64_t CallMemory::differing_from(float value) const {
  return 2 * elements - std::count(in.get(), in.get() + elements, value) -
         std::count(out.get(), out.get() + elements, value);
}

Work start_call(ProcessGroup& group, Call call, const CallMemory& memory,
                std::int64_t per_rank, int root) {
  const int ranks = group.size();
  const Buffer in = floats(memory.in, per_rank);
  const Buffer out = floats(memory.out, per_rank);
  const Buffer all_in = floats(memory.in, ranks * per_rank);
  const Buffer all_out = floats(memory.out, ranks * per_rank);
  const auto blocks_in = block_a_rank(memory.in, per_rank, ranks);
  const auto blocks_out = block_a_rank(memory.out, per_rank, ranks);
  switch (call) {
    case Call::kBarrier:
      return group.barrier();
    case Call::kBroadcast:
      return group.broadcast(all_out, root);
    case Call::kAllReduce:
      return group.all_reduce(all_out, kReduction);
    case Call::kReduce:
      return group.reduce(all_out, kReduction, root);
    case Call::kAllGather:
      return group.all_gather(in, all_out);
    case Call::kAllGatherV:
      return group.all_gather_v(in, blocks_out);
    case Call::kGather:
      return group.gather(in, all_out, root);
    case Call::kScatter:
      return group.scatter(all_in, out, root);
    case Call::kReduceScatter:
      return group.reduce_scatter(all_in, out, kReduction);
    case Call::kReduceScatterV:
      return group.reduce_scatter_v(blocks_in, out, kReduction);
    case Call::kAllToAll:
      return group.all_to_all(all_in, all_out);
    case Call::kAllToAllV:
      return group.all_to_all_v(blocks_in, blocks_out);
  }
  return {};
}

std::vector<Work> start_messages(ProcessGroup& group, const CallMemory& memory,
                                 std::int64_t elements) {
  const int next = (group.rank() + 1) % group.size();
  const int before = (group.rank() + group.size() - 1) % group.size();
  const std::vector<Message> messages{
      {Message::Direction::kSend, floats(memory.in, elements), next},
      {Message::Direction::kReceive, floats(memory.out, elements), before}};
  return group.batch_isend_irecv(messages);
}

// The input of rank `by`; never negative, never a pattern that marks memory.
float KnownCall::brought(int by, std::int64_t i) const {
  return static_cast<float>((i * 7 + by * 131 + std::int64_t{number} * 31) %
                            1009);
}

float KnownCall::greatest(std::int64_t i) const {
  float most = 0;
  for (int r = 0; r < ranks; ++r) most = std::max(most, brought(r, i));
  return most;
}

std::int64_t KnownCall::elements_read() const {
  return call ? ranks * per_rank : per_rank;
}

std::int64_t KnownCall::elements_of_result() const {
  if (!call) return per_rank;
  switch (*call) {
    case Call::kBarrier:
      return 0;
    case Call::kReduce:
    case Call::kGather:
      return rank == root ? ranks * per_rank : 0;
    case Call::kScatter:
    case Call::kReduceScatter:
    case Call::kReduceScatterV:
      return per_rank;
    case Call::kBroadcast:
    case Call::kAllReduce:
    case Call::kAllGather:
    case Call::kAllGatherV:
    case Call::kAllToAll:
    case Call::kAllToAllV:
      return ranks * per_rank;
  }
  return 0;
}

float KnownCall::expected(std::int64_t i) const {
  if (!call) return brought((rank + ranks - 1) % ranks, i);
  const auto from = static_cast<int>(per_rank > 0 ? i / per_rank : 0);
  const std::int64_t within = i - from * per_rank;
  switch (*call) {
    case Call::kBarrier:
      return 0;
    case Call::kBroadcast:
      return brought(root, i);
    case Call::kAllReduce:
    case Call::kReduce:
      return greatest(i);
    case Call::kAllGather:
    case Call::kAllGatherV:
    case Call::kGather:
      return brought(from, within);
    case Call::kScatter:
      return brought(root, rank * per_rank + i);
    case Call::kReduceScatter:
    case Call::kReduceScatterV:
      return greatest(rank * per_rank + i);
    case Call::kAllToAll:
    case Call::kAllToAllV:
      return brought(from, rank * per_rank + within);
  }
  return 0;
}

void KnownCall::fill(const CallMemory& memory) const {
  for (std::int64_t i = 0; i < elements_read(); ++i)
    memory.in.get()[i] = memory.out.get()[i] = brought(rank, i);
}

std::int64_t KnownCall::count_wrong(const CallMemory& memory) const {
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < elements_of_result(); ++i)
    wrong += memory.out.get()[i] != expected(i) ? 1 : 0;
  return wrong;
}

}  // namespace lockstep
