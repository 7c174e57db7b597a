// A fake communicator's operations: calls that start together, and their
// effects on memory.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "src/comm/testing/fake_gpu/fake_gpu_stream.h"

namespace lockstep {

// The place where a call of one rank meets those of others: the n-th of its
// sort.
struct FakePlace {
  enum class Sort { kCollective, kSend, kReceive };
  Sort sort = Sort::kCollective;
  int peer = 0;  // 0 of a collective
  std::uint64_t index = 0;
  friend auto operator<=>(const FakePlace&, const FakePlace&) = default;
};

struct FakeCall {
  LockstepGpuCall call{};
  std::shared_ptr<FakeStream> stream{};
  FakePlace place{};
  int rank = 0;
  int size = 1;
  bool done = false;
  std::shared_ptr<const std::string> text{};

  std::size_t bytes() const;
  std::vector<MemoryUse> uses() const;
};

// "" or the reason why `call` is invalid for a rank of `size`.
std::string what_is_wrong(const LockstepGpuCall& call, int size);
// Whether the two calls match.
bool fits(const FakeCall& one, const FakeCall& other);
// Whether two calls that start together, or the two ends of one, touch memory
// that they must not share.
std::string overlap_within(const std::vector<FakeCall>& calls);

// The calls of one rank to one communicator that start together, in all of
// their streams.
struct FakeOperation {
  std::vector<FakeCall> calls{};
  std::map<FakePlace, std::size_t> at{};  // calls, by place
  std::vector<std::shared_ptr<FakeStream>> streams{};
  std::size_t left = 0;  // pending calls
  std::uint64_t due = 0;
  VectorClock host{};  // the calling thread's knowledge
  bool begun = false;
  VectorClock knows{};   // as it begins
  VectorClock gained{};  // from other ranks

  FakeOperation(std::vector<FakeCall> its_calls, VectorClock host_knows);
  // Call once the calls have their places.
  void index();
  FakeCall* find(const FakePlace& place);
  // Whether it is the next in each of its streams.
  bool is_at_head() const;
  void begin();
  void end();   // leaves its streams, which gain its knowledge
  void drop();  // leaves its streams, from any position
};

// Reads the ranks' inputs of a collective, and writes their outputs.
void carry_out_collective(const std::vector<FakeCall*>& ranks);
// The same for a message.
void carry_out_message(const FakeCall& send, const FakeCall& receive);
void write_garbage(const FakeCall& call, FakeChance& chance);
// Whether the end of `to` comes after the begin of `from`.
bool comes_after(const FakeCall& to, const FakeCall& from);

}  // namespace lockstep
