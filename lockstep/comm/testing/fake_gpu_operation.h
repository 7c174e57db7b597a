// What a fake communicator is given: calls that start together, and what they
// do to memory.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/comm/testing/fake_gpu_stream.h"

namespace lockstep {

// Where a call of one rank meets those of others: the n-th of its sort.
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

// "" or why `call` can never work for a rank of `size`.
std::string what_is_wrong(const LockstepGpuCall& call, int size);
// Whether a call is one that the other waits for.
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
  std::size_t left = 0;  // calls that are not done
  std::uint64_t due = 0;
  VectorClock host{};  // what the thread knew that gave it
  bool begun = false;
  VectorClock knows{};   // as it begins
  VectorClock gained{};  // from other ranks

  FakeOperation(std::vector<FakeCall> its_calls, VectorClock host_knows);
  // To be called once calls have their places.
  void index();
  FakeCall* find(const FakePlace& place);
  // Whether it is the next in each of its streams.
  bool is_at_head() const;
  void begin();
  void end();   // takes it out of its streams, which know what it does
  void drop();  // takes it out of them, wherever it is
};

// Reads what the ranks of a collective bring, and writes what they get.
void carry_out_collective(const std::vector<FakeCall*>& ranks);
// The same of a message.
void carry_out_message(const FakeCall& send, const FakeCall& receive);
void write_garbage(const FakeCall& call, FakeChance& chance);
// Whether what `to` does at its end comes after `from` has begun.
bool comes_after(const FakeCall& to, const FakeCall& from);

}  // namespace lockstep
