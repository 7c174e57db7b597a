// Which ranks of a shared-memory group are gone, and why.
//
// A rank that leaves says so in its area; a pidfd shows that a rank has died. A
// rank that gives up because of another rank names it, so that a cascade of
// errors leads back to its cause.
//
// Threads: every method may be called from any thread; depart() by one thread
//          at a time.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/mutex.h"
#include "src/comm/operation/backend.h"
#include "src/comm/operation/operation_text.h"
#include "src/comm/shm/control_block.h"
#include "src/net/epoll.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

// Why a rank takes no further part.
struct PeerExit {
  int culprit = 0;  // the rank whose failure was the cause
  std::string reason;
  bool disagreed = false;  // the ranks' calls did not match
};

// A handle on each rank's process.
class PeerProcesses {
 public:
  explicit PeerProcesses(std::vector<FileDescriptor> handles);

  const FileDescriptor& operator[](int rank) const {
    return *handles_[static_cast<std::size_t>(rank)];
  }

  // Whether any of them has ended: one system call for all.
  bool any_has_ended();

 private:
  // Shared with the other groups of these processes.
  std::vector<std::shared_ptr<const FileDescriptor>> handles_;
  Mutex mutex_;
  Epoll epoll_ LOCKSTEP_GUARDED_BY(mutex_);
};

class PeerStatus {
 public:
  // A group and its duplicates share `processes`.
  PeerStatus(const GroupIdentity& identity, ControlView control,
             std::shared_ptr<PeerProcesses> processes)
      : identity_(identity),
        control_(control),
        processes_(std::move(processes)) {}

  // Announces that this rank is gone; the first announcement stands. The caller
  // must wake waiting ranks.
  void depart(Presence presence, const PeerExit& why) noexcept;

  // Whether an operation needs each of some ranks, or any one of them.
  enum class Need { kEach, kAnyOne };

  // A rank whose absence ends an operation that needs the ranks `needed` (all
  // ranks if empty). Dead and failed ranks always end it; ranks that left in
  // good order only if needed. A process that ended takes precedence over a
  // rank that gave up because of it.
  std::optional<PeerExit> find(const std::vector<int>& needed,
                               Need need = Need::kEach) const;

  // Whether the process of rank `rank` has ended.
  bool has_ended(int rank) const;

  // The error that ends `call`, which is in flight on this rank.
  std::exception_ptr error_for(const std::string& call,
                               const PeerExit& peer_exit) const;

 private:
  // "its process exited with code 3", or the known part of that.
  std::string end_of(int rank) const;
  std::string reason_of(const PeerExit& peer_exit) const;
  Departure departure_of(int rank) const;
  bool has_left(int rank) const;
  bool is_missed(int rank, const std::vector<int>& needed, Need need) const;

  const GroupIdentity identity_;
  ControlView control_;
  std::shared_ptr<PeerProcesses> processes_;
};

}  // namespace lockstep
