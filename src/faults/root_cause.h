// Which of several failed ranks caused the failures of the others.
//
// One rule for every watcher of ranks: the launcher, those of several hosts
// together, and, for the loss of a peer, spawn() and ranks that are threads. A
// rank that fails because of another one, as its note says, is not the cause,
// however its process ended: a survivor may die by any signal while it cleans
// up. Of the others, a rank that a signal ended, other than SIGABRT, comes
// before one that ended by itself, and an earlier end before a later one. If
// all fail because of others, the first that another one names is the cause.
//
// A rank that tells the others of its error may end after them. So a watcher
// that knows only of consequences waits for their cause, for a limited time.
//
// Threads: any thread.
// Errors:  none.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>

#include "src/base/exit_status.h"
#include "src/faults/fault_note.h"

namespace lockstep {

// How a failed rank ended.
struct RankEnd {
  int rank = -1;  // in the job, as FaultNote::culprit; -1: unknown
  ExitStatus status = {.code = 1};
  std::optional<FaultNote> note = std::nullopt;  // that the rank left
};

// The later, the likelier the rank caused the failures of the others.
enum class EndKind : std::uint8_t {
  kConsequence,  // the rank failed because of another one, as its note says
  // The rank exited, or SIGABRT ended it, as it ends a C++ program that does
  // not catch an exception.
  kByItself,
  kBySignal,  // any other signal ended the rank
};

EndKind kind_of(const RankEnd& end);

// The index of the cause. `ends` has at least one, in the order in which the
// ranks ended.
std::size_t root_cause(std::span<const RankEnd> ends);

// The same for errors of ranks that are threads; null if no element is set.
std::exception_ptr root_cause(std::span<const std::exception_ptr> errors);

// How long after the first of `ends` another failure may explain them: zero if
// one of them is no consequence.
std::chrono::milliseconds time_for_cause(std::span<const RankEnd> ends);

}  // namespace lockstep
