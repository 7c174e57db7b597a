// How a group comes into being: on all its ranks, or on none.
//
// The ranks meet through a view of the store that says more than that a key has
// come: a rank that waits there gets an error as soon as another rank has given
// up, or has lost its connection to the store, as when its process ended. A
// rank that has met all others says that it is ready; the last one to say so
// writes down that the group is formed, and a rank that gives up, that it is
// not. The first of these stands. What ranks put into the store meanwhile is
// erased at the end, but for what became of a group that did not form: a rank
// that comes late reads it.
//
// Threads: one object, one thread at a time.
// Errors:  as each method says.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/comm/backend.h"
#include "lockstep/store/store.h"

namespace lockstep {

class MeetingStore;

// The key of the job's part of the store that is set once rank `rank_in_job`
// has lost its connection to the store: its last will.
std::string ended_key(int rank_in_job);

class Formation {
 public:
  using Seconds = std::chrono::duration<double>;

  // Of the group `identity.name`, which no other in `store` is called.
  Formation(const GroupIdentity& identity, std::shared_ptr<Store> store,
            Seconds patience);

  // The store to meet through. Until the group is formed its waits throw
  // PeerFailure, Timeout or InvalidArgument when the group cannot form any
  // more; afterwards it is the store, and nothing else.
  std::shared_ptr<Store> store() const;

  // Returns when all ranks of the group have met. Throws as waits of store()
  // do, and Timeout naming the ranks that are not ready within `patience`.
  void complete();

  // Tells the other ranks that this one has given up because of `error`.
  // Throws that, or what the group has failed of before.
  [[noreturn]] void fail(const std::exception_ptr& error);

 private:
  void expire();
  Timeout late_ranks();
  void clean_up();

  const GroupIdentity identity_;
  const Seconds patience_;
  const std::shared_ptr<MeetingStore> store_;
};

// What a rank gets that comes when group `identity.name` has failed to form
// without it: the error of the others. Null where it has not failed.
std::exception_ptr failure_to_form(const GroupIdentity& identity, Store& store);

}  // namespace lockstep
