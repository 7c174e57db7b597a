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

// The ends of the chains of waits that begin with `awaited`, the ranks that
// `rank`, one of `size`, waits for:
//
//   - a rank that does not wait;
//   - a rank that waits for a message from any source: each of the others could
//     have sent it, so none of them is late for certain;
//   - a rank that waits for `rank`, which is a deadlock.
//
// Where there is no end, and for a rank that waits for any source, these are
// the ranks of `awaited`. Asks `find_waiting` at most once for each rank found.
std::vector<int> ends_of_waits(const AwaitedRanks& awaited, int rank, int size,
                               const FindWaiting& find_waiting);

}  // namespace lockstep
