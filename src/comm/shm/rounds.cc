#include "src/comm/shm/rounds.h"

#include <algorithm>

namespace lockstep {
namespace {

// Bytes of a payload; fetching more would take longer than there is time.
constexpr std::size_t kTakenBack = 4 << 10;

}  // namespace

void Rounds::arrive() {
  ++round_;
  seen_ = 0;
  slot(rank_, round_).round.store(round_);
  if (all_arrived()) bell_.ring();
}

#if defined(__x86_64__)
__attribute__((target("prfchw")))  // elsewhere it would fetch for reading
#endif
void Rounds::take_back_next_slot() {
  const auto* const begin = reinterpret_cast<const std::byte*>(&next_slot());
  const std::byte* const end =
      next_slot().payload + std::min(std::size_t{next_slot().used}, kTakenBack);
  for (const std::byte* at = begin; at < end; at += kCacheLine)
    __builtin_prefetch(at, 1);
}

bool Rounds::all_arrived() {
  while (seen_ < ranks_ && slot(seen_, round_).round.load() >= round_) ++seen_;
  return seen_ == ranks_;
}

std::vector<int> Rounds::absent_from(std::uint64_t round) const {
  std::vector<int> ranks;
  for (int r = 0; r < ranks_; ++r)
    if (last_of(r) < round) ranks.push_back(r);
  return ranks;
}

std::vector<int> Rounds::awaited_by(int r) const {
  const std::uint64_t round = last_of(r);
  std::vector<int> ranks = absent_from(round);
  if (!ranks.empty()) return ranks;
  if (part_of(r, round) != Part::kDone) return ranks;
  const auto others_in = [&](auto wanted) {
    for (int other = 0; other < ranks_; ++other)
      if (wanted(part_of(other, round))) ranks.push_back(other);
  };
  others_in([](Part part) { return part == Part::kAtWork; });
  if (ranks.empty()) others_in([](Part part) { return part != Part::kDone; });
  return ranks;
}

// A rank announces that it is at work before it claims a unit, and this counter
// orders both: a rank that claimed its unit before the work was ended is seen
// at work until it has finished.
bool Rounds::end_work() {
  std::atomic<std::uint64_t>& claimed = control_.block().claimed;
  std::uint64_t seen = claimed.load();
  do {
    // A rank is in the next round, so this round is over.
    if (is_later(seen)) return false;
  } while (!claimed.compare_exchange_weak(
      seen, tagged(count_of(seen) | ControlBlock::kEnded)));
  return (count_of(seen) & ~ControlBlock::kEnded) != 0;
}

bool Rounds::discard_unless_finished() {
  const std::uint32_t taken =
      count_of(control_.block().claimed.load()) & ~ControlBlock::kEnded;
  std::atomic<std::uint64_t>& finished = control_.block().finished;
  std::uint64_t seen = finished.load();
  do {
    if (count_of(seen) == taken) return true;
  } while (!finished.compare_exchange_weak(
      seen, tagged(count_of(seen) | ControlBlock::kEnded)));
  return false;
}

std::vector<int> Rounds::unfinished(Work work) const {
  std::vector<int> ranks;
  for (int r = 0; r < ranks_; ++r) {
    const Part part = part_of(r);
    const bool holds_up =
        work == Work::kOwn ? part != Part::kDone : part == Part::kAtWork;
    if (holds_up) ranks.push_back(r);
  }
  return ranks;
}

bool Rounds::claim(std::uint32_t units, std::uint32_t& unit) {
  std::atomic<std::uint64_t>& claimed = control_.block().claimed;
  std::uint64_t seen = claimed.load();
  do {
    unit = count_of(seen);
    if (unit >= units || is_later(seen)) return false;
  } while (!claimed.compare_exchange_weak(seen, tagged(unit + 1)));
  return true;
}

void Rounds::finish(std::uint32_t count, std::uint32_t units) {
  std::atomic<std::uint64_t>& finished = control_.block().finished;
  std::uint64_t seen = finished.load();
  while (
      !finished.compare_exchange_weak(seen, tagged(count_of(seen) + count))) {
  }
  if (count_of(seen) + count >= units) bell_.ring();
}

bool Rounds::all_finished(std::uint32_t units) const {
  const std::uint32_t count = count_of(control_.block().finished.load());
  return count >= units && count < ControlBlock::kEnded;
}

std::string Rounds::last_seen(int r) const {
  const Slot& even = control_.rank(r).slots[0];
  const Slot& odd = control_.rank(r).slots[1];
  const Slot& latest = even.round.load() > odd.round.load() ? even : odd;
  if (latest.round.load() == 0) return "no operation";
  return describe(latest.signature);
}

}  // namespace lockstep
