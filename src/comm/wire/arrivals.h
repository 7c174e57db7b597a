// The receives without which a collective cannot continue.
//
// While they are under way the group's missing() names their senders. A
// collective waits for one receive at a time, so the others are looked at
// meanwhile, and when it fails: a rank whose message lies here is not missing.
//
// Threads: the thread that carries out the group's collective.
// Errors:  wait() throws those of WireCore's waits.
#pragma once

#include <vector>

#include "src/comm/wire/wire_core.h"

namespace lockstep {

class Arrivals {
 public:
  explicit Arrivals(WireCore& core) : core_(core) {}
  ~Arrivals() { note(); }
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  // `request` must stay where it is until wait() has returned or this ends.
  void expect(WireCore::Request& request);

  // Waits for a request that expect() got.
  void wait(WireCore::Request& request, Deadline deadline);

 private:
  void note() noexcept;

  WireCore& core_;
  std::vector<WireCore::Request*> pending_;
};

}  // namespace lockstep
