#include "src/comm/testing/fake_gpu/fake_gpu_operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "lockstep/base/buffer.h"
#include "src/comm/testing/fake_gpu/fake_gpu_sum.h"

namespace lockstep {
namespace {

bool has_from(LockstepGpuKind kind) {
  return kind == kGpuAllReduce || kind == kGpuReduce || kind == kGpuAllGather ||
         kind == kGpuReduceScatter || kind == kGpuSend;
}
bool has_to(LockstepGpuKind kind) { return kind != kGpuSend; }
bool in_place(LockstepGpuKind kind) { return kind == kGpuBroadcast; }
bool has_peer(LockstepGpuKind kind) {
  return kind == kGpuBroadcast || kind == kGpuReduce || kind == kGpuSend ||
         kind == kGpuReceive;
}
bool reduces(LockstepGpuKind kind) {
  return kind == kGpuAllReduce || kind == kGpuReduce ||
         kind == kGpuReduceScatter;
}

// Where a rank's own block lies in `blocks`.
const std::byte* own_block(const void* blocks, const FakeCall& call) {
  return static_cast<const std::byte*>(blocks) +
         static_cast<std::size_t>(call.rank) * call.bytes();
}

// NCCL lets a rank's input lie exactly where its output goes.
bool allowed_to_overlap(const FakeCall& call) {
  const LockstepGpuCall& c = call.call;
  switch (c.kind) {
    case kGpuAllReduce:
    case kGpuReduce:
      return c.from == c.to;
    case kGpuAllGather:
      return c.from == own_block(c.to, call);
    case kGpuReduceScatter:
      return c.to == own_block(c.from, call);
    case kGpuBroadcast:
    case kGpuSend:
    case kGpuReceive:
      return true;
  }
  return true;
}

bool conflict(const std::vector<MemoryUse>& one,
              const std::vector<MemoryUse>& other) {
  for (const MemoryUse& a : one) {
    for (const MemoryUse& b : other) {
      if (a.conflicts_with(b)) return true;
    }
  }
  return false;
}

std::vector<const std::byte*> inputs_of(const std::vector<FakeCall*>& ranks,
                                        std::size_t offset) {
  std::vector<const std::byte*> inputs;
  for (const FakeCall* call : ranks) {
    const void* from =
        in_place(call->call.kind) ? call->call.to : call->call.from;
    inputs.push_back(static_cast<const std::byte*>(from) + offset);
  }
  return inputs;
}

// The result of `call` from all ranks' inputs.
std::vector<std::byte> result_for(const std::vector<FakeCall*>& ranks,
                                  const FakeCall& call) {
  const LockstepGpuCall& c = call.call;
  const auto type = static_cast<DataType>(c.type);
  const auto scattered =
      c.kind == kGpuReduceScatter
          ? static_cast<std::size_t>(call.rank) * call.bytes()
          : 0;
  const auto inputs = inputs_of(ranks, scattered);
  if (reduces(c.kind)) return reduce_elements(type, c.sum, inputs, c.count);
  std::vector<std::byte> result;
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    if (c.kind == kGpuAllGather || static_cast<int>(r) == c.peer)
      result.insert(result.end(), inputs[r], inputs[r] + call.bytes());
  }
  return result;
}

}  // namespace

std::size_t FakeCall::bytes() const {
  return call.count * size_of(static_cast<DataType>(call.type));
}

std::vector<MemoryUse> FakeCall::uses() const {
  using enum MemoryUse::Kind;
  const std::size_t all = bytes() * static_cast<std::size_t>(size);
  switch (call.kind) {
    case kGpuAllReduce:
      return {{kReads, call.from, bytes()}, {kWrites, call.to, bytes()}};
    case kGpuBroadcast:
      return {{call.peer == rank ? kReads : kWrites, call.to, bytes()}};
    case kGpuReduce:
      if (call.peer != rank) return {{kReads, call.from, bytes()}};
      return {{kReads, call.from, bytes()}, {kWrites, call.to, bytes()}};
    case kGpuAllGather:
      return {{kReads, call.from, bytes()}, {kWrites, call.to, all}};
    case kGpuReduceScatter:
      return {{kReads, call.from, all}, {kWrites, call.to, bytes()}};
    case kGpuSend:
      return {{kReads, call.from, bytes()}};
    case kGpuReceive:
      return {{kWrites, call.to, bytes()}};
  }
  return {};
}

std::string what_is_wrong(const LockstepGpuCall& call, int size) {
  if (call.kind < kGpuAllReduce || call.kind > kGpuReceive)
    return fmt::format("there is no kind {}", static_cast<int>(call.kind));
  if (call.type < 0 || call.type >= static_cast<int>(DataType::kBool))
    return fmt::format("there is no type {}", call.type);
  if (reduces(call.kind) && (call.sum < kGpuSum || call.sum > kGpuAverage))
    return fmt::format("there is no reduction {}", static_cast<int>(call.sum));
  if (has_peer(call.kind) && (call.peer < 0 || call.peer >= size))
    return fmt::format("there is no rank {} of {}", call.peer, size);
  if (in_place(call.kind) && call.from != nullptr && call.from != call.to)
    return "broadcast is in place";
  if (call.count == 0) return {};
  if ((has_from(call.kind) && call.from == nullptr) ||
      (has_to(call.kind) && call.to == nullptr))
    return "memory is null";
  return {};
}

bool fits(const FakeCall& one, const FakeCall& other) {
  const LockstepGpuCall& a = one.call;
  const LockstepGpuCall& b = other.call;
  if (a.count != b.count || a.type != b.type) return false;
  if (one.place.sort != FakePlace::Sort::kCollective) return true;
  return a.kind == b.kind && (!has_peer(a.kind) || a.peer == b.peer) &&
         (!reduces(a.kind) || a.sum == b.sum);
}

std::string overlap_within(const std::vector<FakeCall>& calls) {
  std::vector<std::vector<MemoryUse>> uses;
  for (const FakeCall& call : calls) {
    const auto its = call.uses();
    if (its.size() == 2 && its[0].conflicts_with(its[1]) &&
        !allowed_to_overlap(call))
      return *call.text + " reads where it writes";
    for (std::size_t i = 0; i < uses.size(); ++i) {
      if (conflict(uses[i], its))
        return fmt::format("{} and {} start together on the same memory",
                           *calls[i].text, *call.text);
    }
    uses.push_back(its);
  }
  return {};
}

FakeOperation::FakeOperation(std::vector<FakeCall> its_calls,
                             VectorClock host_knows)
    : calls(std::move(its_calls)),
      left(calls.size()),
      host(std::move(host_knows)) {
  std::set<FakeStream*> seen;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (seen.insert(calls[i].stream.get()).second)
      streams.push_back(calls[i].stream);
  }
}

void FakeOperation::index() {
  for (std::size_t i = 0; i < calls.size(); ++i) at.emplace(calls[i].place, i);
}

FakeCall* FakeOperation::find(const FakePlace& place) {
  const auto found = at.find(place);
  if (found == at.end() || calls[found->second].done) return nullptr;
  return &calls[found->second];
}

bool FakeOperation::is_at_head() const {
  return std::all_of(streams.begin(), streams.end(), [&](const auto& stream) {
    return !stream->tasks.empty() &&
           stream->tasks.front().operation.get() == this;
  });
}

void FakeOperation::begin() {
  if (begun) return;
  begun = true;
  knows.join(host);
  for (const auto& stream : streams) {
    stream->knows.tick(stream->actor);
    knows.join(stream->knows);
  }
}

void FakeOperation::end() {
  for (const auto& stream : streams) {
    stream->knows.join(knows);
    stream->knows.join(gained);
  }
  drop();
}

void FakeOperation::drop() {
  for (const auto& stream : streams) {
    std::erase_if(stream->tasks, [&](const FakeTask& task) {
      return task.operation.get() == this;
    });
  }
}

void carry_out_collective(const std::vector<FakeCall*>& ranks) {
  // Reads all inputs before it writes any output: outputs may be inputs.
  std::vector<std::vector<std::byte>> results;
  for (const FakeCall* call : ranks) {
    const LockstepGpuCall& c = call->call;
    const bool gets = c.kind != kGpuReduce || c.peer == call->rank;
    results.push_back(gets && c.count != 0 ? result_for(ranks, *call)
                                           : std::vector<std::byte>{});
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (!results[r].empty())
      std::memcpy(ranks[r]->call.to, results[r].data(), results[r].size());
  }
}

void carry_out_message(const FakeCall& send, const FakeCall& receive) {
  if (send.call.count != 0)
    std::memcpy(receive.call.to, send.call.from, send.bytes());
}

void write_garbage(const FakeCall& call, FakeChance& chance) {
  for (const MemoryUse& use : call.uses()) {
    if (use.kind == MemoryUse::Kind::kReads || use.bytes == 0) continue;
    const int garbage = static_cast<int>(1 + chance.below(255));
    std::memset(call.call.to, garbage, use.bytes);
  }
}

bool comes_after(const FakeCall& to, const FakeCall& from) {
  const LockstepGpuCall& c = to.call;
  switch (c.kind) {
    case kGpuAllReduce:
    case kGpuAllGather:
    case kGpuReduceScatter:
      return true;
    case kGpuBroadcast:
      return from.rank == c.peer;
    case kGpuReduce:
      return to.rank == c.peer;
    case kGpuSend:
      return false;
    case kGpuReceive:
      return true;
  }
  return false;
}

}  // namespace lockstep
