// The TCP connections between the ranks of a group.
//
// Every rank listens at its own address, and gives that address and 32 random
// bytes to the others through the store. A rank that calls another one sends it
// that rank's bytes, which only readers of the store know, and gets its own in
// return. A rank rejects a process that does not know them, without delaying
// other ranks. The same applies to ranks of another job that found the same
// port.
//
// A mesh has formed on a rank that has the connections it was asked for at
// first. A thread makes the others when they are needed, so that a rank has as
// many descriptors as it has ranks to talk to. When two ranks call each other
// at the same time, the lower rank's call counts.
//
// Threads: as each method says.
// Errors:  Timeout naming the ranks that never came; InvalidArgument when two
//          processes claim one rank; the store's errors; SystemError.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/store/store.h"
#include "src/comm/operation/backend.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

class Mesh {
 public:
  // Connects this rank to the ranks `first`, each of which does the same. Each
  // rank of the group makes one. `address` is the numeric address at which
  // others reach this rank.
  Mesh(const GroupIdentity& identity, Store& store, const std::string& address,
       const std::vector<int>& first, Deadline deadline);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // The name of each rank's host.
  const std::vector<std::string>& hosts() const;
  // Rank 0's random word, which differs for each group of the same name.
  std::string nonce() const;

  // The connections made so far, by rank; empty for all others.
  std::vector<FileDescriptor> take_sockets();

  // Why a call fails: the called rank has ended or left the group, refuses this
  // one, or its host is silent; or this rank has no descriptors, or another
  // trouble of its own. A rank that is stopped or busy is awaited.
  enum class Cause { kPeer, kThisRank };

  // What happens later; the mesh's thread calls them.
  struct Events {
    std::function<void(int rank, FileDescriptor socket)> connected;
    std::function<void(int rank, Cause cause, const std::string& why)>
        unreachable;
    // How long a rank is called in vain.
    std::chrono::milliseconds patience = std::chrono::seconds(15);
  };
  // Starts the thread that makes the other connections. Call it once, after
  // take_sockets().
  void serve(Events events);

  // Begins to connect to `rank`, after serve(); for a rank that is connected or
  // being called it does nothing. Any thread.
  void call(int rank);

  // Ends the thread, and refuses further calls. Any thread but the mesh's own.
  void stop() noexcept;

 private:
  class Meeting;
  const std::unique_ptr<Meeting> meeting_;
};

}  // namespace lockstep
