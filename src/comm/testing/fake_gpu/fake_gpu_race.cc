#include "src/comm/testing/fake_gpu/fake_gpu_race.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace lockstep {
namespace {

std::uintptr_t begin_of(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

std::string sentence(const MemoryUse& use, const StreamAccess& user,
                     const std::string& other, const char* did) {
  return fmt::format(
      "{} {} {} bytes at {:#x}, which {} has {}, and nothing orders the two",
      *user.text, use.kind == MemoryUse::Kind::kReads ? "reads" : "writes",
      use.bytes, begin_of(use.memory), other, did);
}

}  // namespace

void VectorClock::tick(std::size_t actor) {
  if (actor >= times_.size()) times_.resize(actor + 1);
  ++times_[actor];
}

void VectorClock::join(const VectorClock& other) {
  if (other.times_.size() > times_.size()) times_.resize(other.times_.size());
  for (std::size_t i = 0; i < other.times_.size(); ++i)
    times_[i] = std::max(times_[i], other.times_[i]);
}

bool MemoryUse::overlaps(const MemoryUse& other) const {
  return bytes != 0 && other.bytes != 0 &&
         begin_of(memory) < begin_of(other.memory) + other.bytes &&
         begin_of(other.memory) < begin_of(memory) + bytes;
}

bool MemoryUse::conflicts_with(const MemoryUse& other) const {
  return overlaps(other) &&
         (kind == Kind::kWrites || other.kind == Kind::kWrites);
}

void MemoryHistory::split_at(std::uintptr_t place) {
  auto next = segments_.upper_bound(place);
  if (next == segments_.begin()) return;
  auto before = std::prev(next);
  if (before->first == place || before->second.end <= place) return;
  Segment rest = before->second;
  before->second.end = place;
  segments_.emplace(place, std::move(rest));
}

MemoryHistory::Segments::iterator MemoryHistory::segment_at(
    std::uintptr_t place, std::uintptr_t end) {
  const auto next = segments_.lower_bound(place);
  if (next != segments_.end() && next->first == place) return next;
  if (next != segments_.end()) end = std::min(end, next->first);
  return segments_.emplace(place, Segment{.end = end}).first;
}

std::string MemoryHistory::add(const MemoryUse& use, const StreamAccess& user) {
  std::string wrong;
  if (use.bytes == 0) return wrong;
  std::uintptr_t place = begin_of(use.memory);
  const std::uintptr_t end = place + use.bytes;
  split_at(place);
  split_at(end);
  while (place < end) {
    Segment& segment = segment_at(place, end)->second;
    const std::string found = add_to(segment, use, user);
    if (wrong.empty()) wrong = found;
    place = segment.end;
  }
  return wrong;
}

std::string MemoryHistory::add_to(Segment& segment, const MemoryUse& use,
                                  const StreamAccess& user) {
  std::string wrong;
  if (!segment.written.is_known_to(user.knows))
    wrong = sentence(use, user, *segment.written.text, "written");
  const Access access{user.actor, user.knows.of(user.actor), user.text};
  if (use.kind == MemoryUse::Kind::kReads) {
    std::erase_if(segment.read,
                  [&](const Access& read) { return read.actor == user.actor; });
    segment.read.push_back(access);
    return wrong;
  }
  for (const Access& read : segment.read) {
    if (wrong.empty() && !read.is_known_to(user.knows))
      wrong = sentence(use, user, *read.text, "read");
  }
  segment.written = access;
  segment.read.clear();
  return wrong;
}

void MemoryHistory::forget(const void* memory, std::size_t bytes) {
  const std::uintptr_t begin = begin_of(memory);
  split_at(begin);
  split_at(begin + bytes);
  segments_.erase(segments_.lower_bound(begin),
                  segments_.lower_bound(begin + bytes));
}

}  // namespace lockstep
