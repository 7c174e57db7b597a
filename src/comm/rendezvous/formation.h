// Forms a group on all its ranks or on none.
//
// The ranks meet through a view of the store that also reports failures: a
// waiting rank gets an error as soon as another rank gives up or loses its
// connection to the store, for example because its process ended. A rank that
// has met all others announces that it is ready; the last one to do so records
// that the group is formed, and a rank that gives up records that it is not.
// The first record stands. The last rank erases the keys of the exchange at the
// end, except the record of a group that did not form: a late rank reads it.
//
// Threads: one thread at a time per object.
// Errors:  as each method says.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/comm/operation/backend.h"

namespace lockstep {

// For calls that the store answers without waiting for a rank.
inline constexpr std::chrono::seconds kStoreAnswers{30};

class MeetingStore;

// The key of the job's part of the store that is set once rank `rank_in_job`
// has lost its connection to the store: its last will.
std::string ended_key(int rank_in_job);
// The key that is set, after that one, once any rank has.
inline constexpr std::string_view kAnyEnded = "ended";

class Formation {
 public:
  using Seconds = std::chrono::duration<double>;

  // For the group `identity.name`, a name that is unique in `store`.
  Formation(const GroupIdentity& identity, std::shared_ptr<Store> store,
            Seconds timeout);

  // The store to meet through. Until the group is formed, its waits throw
  // PeerFailure, Timeout or InvalidArgument when the group cannot form any
  // more; afterwards it is the plain store.
  std::shared_ptr<Store> store() const;

  // Returns when all ranks of the group have met. Throws what waits of store()
  // throw, and Timeout naming the ranks that are not ready within `timeout`.
  void complete();

  // Tells the other ranks that this one has given up because of `error`. Throws
  // `error`, or the error that the group failed with before.
  [[noreturn]] void fail(const std::exception_ptr& error);

 private:
  void expire();
  Timeout late_ranks();
  void clean_up();

  const GroupIdentity identity_;
  const Seconds timeout_;
  const std::shared_ptr<MeetingStore> store_;
};

// The error of group `identity.name`, for a rank that comes after the group
// failed to form without it. Null if the group has not failed.
std::exception_ptr failure_to_form(const GroupIdentity& identity, Store& store);

}  // namespace lockstep
