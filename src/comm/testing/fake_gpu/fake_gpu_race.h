// The last uses of memory, and whether they are ordered before the next.
//
// An actor is a stream, or a thread of the host; its time counts its actions. A
// vector clock holds, per actor, the time up to which its actions are known to
// have happened. A use by actor `a` at time `t` is ordered before an action
// with a clock in which a's time is at least t (as in FastTrack, Flanagan and
// Freund 2009, but over ranges of any length).
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

class VectorClock {
 public:
  std::uint64_t of(std::size_t actor) const {
    return actor < times_.size() ? times_[actor] : 0;
  }
  void tick(std::size_t actor);
  void join(const VectorClock& other);

 private:
  std::vector<std::uint64_t> times_;  // 0: the actor is unknown
};

struct MemoryUse {
  enum class Kind { kReads, kWrites };
  Kind kind = Kind::kReads;
  const void* memory = nullptr;
  std::size_t bytes = 0;

  bool conflicts_with(const MemoryUse& other) const;
  bool overlaps(const MemoryUse& other) const;
};

// A user of memory: an actor, its knowledge, and a word for its action.
struct StreamAccess {
  std::size_t actor = 0;
  const VectorClock& knows;
  std::shared_ptr<const std::string> text;
};

class MemoryHistory {
 public:
  // Returns "" or a description of the race.
  std::string add(const MemoryUse& use, const StreamAccess& user);
  void forget(const void* memory, std::size_t bytes);

 private:
  struct Access {
    std::size_t actor = 0;
    std::uint64_t time = 0;  // 0: no access
    std::shared_ptr<const std::string> text{};
    bool is_known_to(const VectorClock& clock) const {
      return clock.of(actor) >= time;
    }
  };
  // Memory with one history, up to `end`.
  struct Segment {
    std::uintptr_t end = 0;
    Access written{};
    std::vector<Access> read{};  // since the write; one per actor
  };
  using Segments = std::map<std::uintptr_t, Segment>;  // by begin

  void split_at(std::uintptr_t place);
  // The next segment from `place` on; if memory has no history there, a new one
  // up to `end`.
  Segments::iterator segment_at(std::uintptr_t place, std::uintptr_t end);
  static std::string add_to(Segment& segment, const MemoryUse& use,
                            const StreamAccess& user);

  Segments segments_;
};

}  // namespace lockstep
