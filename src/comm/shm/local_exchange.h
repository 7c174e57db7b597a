// Sets up shared memory among the ranks of one host.
//
// Rank 0 listens on an abstract Unix socket and puts its name and a secret into
// the store. The others connect; rank 0 proves that it knows the secret, then
// each of them does so and sends a pidfd of its process and its heap. The
// secret itself is not sent. Rank 0 answers each with the control block and all
// ranks' pidfds and heaps. Ranks are "on the same host" exactly when this
// exchange succeeds.
//
// Every user of the host can read the secrets of a store without a token.
// There, each end asks the kernel for the other's user before it sends a
// descriptor.
//
// Threads: called once by each rank, from any thread.
// Errors:  Timeout naming the ranks that never came; NetworkError when this
//          rank is on another host than rank 0; PeerFailure when a rank died;
//          InvalidArgument when two processes claim one rank. All ranks that
//          have come get the same error. InvalidArgument on a rank whose user
//          is not rank 0's.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/store/store.h"
#include "src/comm/memory/heap.h"
#include "src/comm/operation/backend.h"
#include "src/net/shared_memory.h"

namespace lockstep {

// The result of the exchange, on every rank.
struct LocalPeers {
  FileDescriptor control;                 // the control block's memory
  std::vector<FileDescriptor> processes;  // a pidfd per rank
  std::vector<FileDescriptor> heaps;      // per rank, may be empty
  bool each_has_a_core = true;            // see own_cores.h
};

// Rank 0 refuses processes of other users unless a token guards the store: then
// only processes that have the token can have read the secret.
enum class OtherUsers { kTurnedAway, kAdmitted };

// What a rank contributes.
struct LocalRank {
  const Heap* heap = nullptr;  // may be null
  OtherUsers others = OtherUsers::kTurnedAway;
};

// All ranks of the group call this with the same store.
LocalPeers exchange_local(const GroupIdentity& identity, Store& store,
                          const LocalRank& own, Deadline deadline);

}  // namespace lockstep
