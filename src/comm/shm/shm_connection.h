// The state that a shared-memory group and its duplicates share on one rank:
// the descriptors of the exchange, and their end. Each has its own control
// block, and so its own order of operations.
//
// Threads: every method may be called from any thread.
#pragma once

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/mutex.h"
#include "src/comm/shm/doorbell.h"
#include "src/comm/shm/local_exchange.h"
#include "src/comm/shm/peer_status.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

class ShmConnection {
 public:
  // The group, or a duplicate of it.
  class Member {
   public:
    virtual ~Member() = default;
    // Ends the member, unless it has ended. May wait for a thread that is
    // carrying out its operations.
    virtual void end_with(const std::exception_ptr& error,
                          const PeerExit& why) = 0;
  };

  explicit ShmConnection(LocalPeers peers)
      : control_(std::move(peers.control)),
        processes_(std::make_shared<PeerProcesses>(std::move(peers.processes))),
        cores_(peers.each_has_a_core ? Doorbell::Cores::kEnough
                                     : Doorbell::Cores::kCrowded) {}

  // The memory of the control blocks.
  const FileDescriptor& control() const { return control_; }
  const std::shared_ptr<PeerProcesses>& processes() const { return processes_; }
  Doorbell::Cores cores() const { return cores_; }

  void add(Member& member) {
    const MutexLock lock(mutex_);
    members_.push_back(&member);
  }

  // After it returns, no thread is in the member's end_with() or enters it.
  // Members are not owned here: otherwise the last owner could be the member's
  // own thread, which the member's destructor joins.
  void remove(Member& member) {
    const MutexLock lock(mutex_);
    std::erase(members_, &member);
  }

  // A member has ended because of `error`: ends the others too.
  void end_members(const std::exception_ptr& error, const PeerExit& why) {
    const MutexLock lock(mutex_);
    for (Member* const member : members_) member->end_with(error, why);
  }

 private:
  const FileDescriptor control_;
  const std::shared_ptr<PeerProcesses> processes_;
  const Doorbell::Cores cores_;
  Mutex mutex_;
  std::vector<Member*> members_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
