// The ranks of one host within a group of several, and the memory they share.
//
// Its errors name ranks by their numbers in the whole group.
//
// Threads: one thread at a time, except abort(), check_peers() and allocate().
// Errors:  wait() throws exceptions that WireCore::give_up() accepts.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/base/settings.h"
#include "src/comm/hybrid/host_map.h"
#include "src/comm/operation/backend.h"

namespace lockstep {

class WireCore;

// A collective of a host's ranks, for start(), that is a part of `whole`.
Operation within_host(OperationKind kind, const Operation& whole,
                      Deadline deadline);

// Whether it is an all_reduce that may be reduced within each host first: a
// mean of means is the mean only if all are over the same number.
bool is_reduced_by_host(const Operation& operation, const HostMap& hosts);

class HostGroup {
 public:
  // `ranks` are the ranks of `whole` on this host; `host` is its number.
  HostGroup(const GroupIdentity& whole, int host, std::vector<int> ranks,
            Store& store, const Settings& settings);

  // The same ranks, for a duplicate of the whole group; see Backend.
  HostGroup duplicate(const GroupIdentity& whole, int number) const;

  int size() const { return static_cast<int>(ranks_.size()); }

  // Starts a collective of the host's ranks and fills in its sequence.
  Work start(Operation operation);

  // The ranks of the whole group that `work` waits for.
  std::vector<int> missing(const Work& work) const;

  // Waits for `work`, which start() returned.
  void wait(const Work& work);
  // The same in an operation of the whole group, `core`, whose missing() names
  // the ranks that `work` waits for meanwhile. Throws too when the whole group
  // has ended elsewhere (WireCore::PeerWatch).
  void wait(WireCore& core, const Work& work, Deadline deadline);

  // Returns when no thread touches the memory of `work` any more. `work` may
  // have failed.
  static void forget(const Work& work) noexcept;

  // Throws like wait() if another rank of the host has died or given up.
  void check_peers();

  void abort(std::string_view reason) noexcept { backend_->abort(reason); }
  void leave() noexcept { backend_->leave(); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) {
    return backend_->allocate(bytes);
  }

 private:
  HostGroup(int host, std::vector<int> ranks, std::shared_ptr<Backend> backend);

  std::vector<int> in_whole_group(std::vector<int> ranks) const;
  [[noreturn]] void end_because_of(const PeerFailure& lost) const;

  const int host_;
  const std::vector<int> ranks_;
  const std::shared_ptr<Backend> backend_;
  // What a waiting thread calls; its address stays when this object moves.
  const std::shared_ptr<std::function<void()>> meanwhile_ =
      std::make_shared<std::function<void()>>();
  std::uint64_t sequence_ = 0;
};

}  // namespace lockstep
