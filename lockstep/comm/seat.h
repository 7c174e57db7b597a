// A process's place as one rank of its job.
//
// Before a job's first group is made, every rank takes its seat in the store,
// and rank 0 calls the roll. Ranks that do not come, processes that claim the
// same rank, and processes of another job (one port used twice, an environment
// variable left over) are found here and named, to everybody and at once.
//
// One store may see several gatherings of the same ranks, one after the other:
// a group is destroyed and another made, or a script runs two programs. Each
// gathering has a part of the store to itself, so that nothing that one leaves
// behind deceives the next.
//
// Threads: one object, one thread at a time.
// Errors:  InvalidArgument for a seat that is taken and for another job;
//          Timeout naming the ranks that did not come; PeerFailure naming one
//          that came and ended.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/store/store.h"

namespace lockstep {

// What a process believes about its job.
struct JobCard {
  int rank = 0;
  int world_size = 1;
  // What tells jobs apart, as RankEnvironment::job; "" is like any other.
  std::string job{};
  bool has_token = false;
};

class Seat {
 public:
  using Seconds = std::chrono::duration<double>;

  // Takes the seat, and returns when every rank has taken its own. Rank 0 waits
  // `patience` for the others, and they for rank 0.
  Seat(std::shared_ptr<Store> store, const JobCard& card, Seconds patience);

  // Gives it back, for the next gathering.
  ~Seat() { leave(); }
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

  // This gathering's part of the store.
  const std::shared_ptr<Store>& store() const { return store_; }
  // The store that has that part.
  const std::shared_ptr<Store>& whole_store() const { return whole_store_; }

 private:
  void take();
  [[noreturn]] void miss_gathering();
  void gather();
  void leave_will();
  std::string call_roll(Deadline deadline);
  std::string hear(const std::string& key, Deadline deadline);
  void check_card(const JobCard& card);
  // Throws what `verdict` says, if anything.
  void heed(const std::string& verdict) const;
  [[noreturn]] void refuse(const std::string& why) const;
  void leave() noexcept;

  const JobCard card_;
  const Seconds patience_;
  const std::shared_ptr<Store> whole_store_;
  std::shared_ptr<Store> store_;
};

}  // namespace lockstep
