#include "src/faults/root_cause.h"

#include <algorithm>
#include <csignal>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// Survivors detect a death within 50 to 150 ms, between hosts 100 ms later.
constexpr auto kDeathIsSeen = 300ms;
// A rank that has told the others of its error lives, and is about to end: on a
// busy machine that takes longer.
constexpr auto kToldErrorEnds = 3000ms;

std::optional<FaultNote> note_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerFailure& gone) {
    return FaultNote{.culprit = gone.rank()};
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace

EndKind kind_of(const RankEnd& end) {
  if (end.note) return EndKind::kConsequence;
  const int signal = end.status.signal;
  return signal != 0 && signal != SIGABRT ? EndKind::kBySignal
                                          : EndKind::kByItself;
}

std::size_t root_cause(std::span<const RankEnd> ends) {
  const auto is_consequence = [](const RankEnd& end) {
    return end.note.has_value();
  };
  const auto is_named = [&](const RankEnd& end) {
    return end.rank >= 0 &&
           std::ranges::any_of(ends, [&](const RankEnd& other) {
             return other.note->culprit == end.rank;
           });
  };
  if (std::ranges::all_of(ends, is_consequence))
    if (const auto named = std::ranges::find_if(ends, is_named);
        named != ends.end())
      return static_cast<std::size_t>(named - ends.begin());
  return static_cast<std::size_t>(std::ranges::max_element(ends, {}, kind_of) -
                                  ends.begin());
}

std::exception_ptr root_cause(std::span<const std::exception_ptr> errors) {
  std::vector<std::exception_ptr> found;
  std::vector<RankEnd> ends;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    found.push_back(error);
    ends.push_back({.note = note_of(error)});
  }
  return found.empty() ? nullptr : found[root_cause(ends)];
}

std::chrono::milliseconds time_for_cause(std::span<const RankEnd> ends) {
  std::chrono::milliseconds time = 0ms;
  for (const RankEnd& end : ends) {
    if (!end.note) return 0ms;
    time = std::max<std::chrono::milliseconds>(
        time, end.note->kind == FaultNote::Kind::kPeerError ? kToldErrorEnds
                                                            : kDeathIsSeen);
  }
  return time;
}

}  // namespace lockstep
