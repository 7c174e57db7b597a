// How the ranks of one host come to share memory.
//
// Rank 0 listens on an abstract Unix socket and puts its name and a secret into
// the store. The others connect; rank 0 proves that it knows the secret, then
// each of them does and sends a pidfd of its process and its heap. The secret
// itself is not sent. Rank 0 answers each with the control block and
// everybody's pidfds and heaps. That the exchange succeeds is what "on the same
// host" means.
//
// A store without a token tells its secrets to each user of the host. There,
// each end asks the kernel for the other's user before it passes anything.
//
// Threads: called once by each rank, from any thread.
// Errors:  Timeout naming the ranks that never came; NetworkError when this
//          rank is on another host than rank 0; PeerFailure when one died;
//          InvalidArgument when two are the same rank. All that have come get
//          the same. InvalidArgument on a rank whose user is not rank 0's.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/heap.h"
#include "lockstep/net/shared_memory.h"
#include "lockstep/store/store.h"

namespace lockstep {

// What every rank knows once the exchange is done.
struct LocalPeers {
  FileDescriptor control;                 // the control block's memory
  std::vector<FileDescriptor> processes;  // a pidfd a rank
  std::vector<FileDescriptor> heaps;      // a heap a rank, or none
  bool each_has_a_core = true;            // may run on one of its own
};

// Processes of other users than rank 0's are turned away unless a token guards
// the store: only who has that can have read the secret.
enum class OtherUsers { kTurnedAway, kAdmitted };

// What a rank brings.
struct LocalRank {
  const Heap* heap = nullptr;  // may be null
  OtherUsers others = OtherUsers::kTurnedAway;
};

// All ranks of the group call this with the same store.
LocalPeers exchange_local(const GroupIdentity& identity, Store& store,
                          const LocalRank& own, Deadline deadline);

}  // namespace lockstep
