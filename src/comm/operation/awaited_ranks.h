// Who is late, where ranks wait for ranks that wait too: see design/wire.md,
// "Who is late".
//
// Threads: values and a function without state.
#pragma once

#include <functional>
#include <optional>
#include <vector>

namespace lockstep {

// The ranks that a rank waits for.
struct AwaitedRanks {
  std::vector<int> ranks;
  bool any_suffices = false;  // it waits for a message from any source
};

// A rank that waits, and for which ranks; nothing if that is not known.
struct WaitingRank {
  int rank = 0;
  std::optional<AwaitedRanks> awaited;
};

// Finds one of the given ranks that waits; nothing if none of them does.
using FindWaiting =
    std::function<std::optional<WaitingRank>(const std::vector<int>&)>;

// The rank that asks who is late.
struct AskingRank {
  int rank = 0;
  int size = 1;
  // What it does now: nothing if it does not wait.
  std::optional<AwaitedRanks> awaited;
};

// The ends of the chains of waits that begin with `awaited`, which an operation
// of `asking` waits for:
//
//   - a rank that does not wait;
//   - a rank that waits for a message from any source: each of the others could
//     have sent it, so none of them is late for certain;
//   - the ranks of a circle, each of which waits for the next, which is a
//     deadlock, and those on the way from one circle to another.
//
// Where there is no other end than `asking` itself, and for a message from any
// source, these are the ranks of `awaited`. Asks `find_waiting` at most once
// for each rank found.
std::vector<int> ends_of_waits(const AwaitedRanks& awaited,
                               const AskingRank& asking,
                               const FindWaiting& find_waiting);

}  // namespace lockstep
