// An alternative implementation of some of a wire group's collectives, through
// which `hybrid` adds shared memory.
//
// Threads: the thread that carries out the group's collective calls run(); any
//          thread may call the others.
// Errors:  run() throws exceptions that WireCore::give_up() accepts.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "src/comm/wire/control_exchange.h"
#include "src/comm/wire/wire_core.h"

namespace lockstep {

class CollectiveWay {
 public:
  virtual ~CollectiveWay() = default;

  // "hybrid"
  virtual std::string_view name() const = 0;

  // The ranks with which this rank exchanges messages in compare(): they
  // connect while the group forms.
  virtual std::vector<int> first_peers() const = 0;

  // Compares the calls of all ranks, as ControlExchange does between all pairs.
  // Returns whether `operation` is complete, the same on every rank. Throws
  // Mismatch on at least one rank where the calls differ; the other ranks wait
  // until the group ends.
  virtual bool compare(WireCore& core, ControlExchange& control,
                       const Operation& operation, Deadline deadline) = 0;

  // Whether run() carries out `operation`. The answer depends only on values
  // that are the same on every rank.
  virtual bool takes(const Operation& operation) const = 0;

  // `tag` and `tag + 1` are reserved for messages of the collective channel.
  // When this returns, no thread or peer touches the operation's buffers any
  // more; if it throws, they may do so until abort() was called and calm_down()
  // has returned; so it is with compare(). It must not report the failure to
  // other ranks: its cause is not in the store yet.
  virtual void run(WireCore& core, const Operation& operation, int tag,
                   Deadline deadline) = 0;

  virtual void calm_down() noexcept = 0;

  // Whether other ranks share this rank's host.
  virtual bool has_peers_on_host() const = 0;
  // Throws like run() if one of them has died or given up.
  virtual void check_peers() = 0;

  // The same for a duplicate of the group; see Backend::duplicate().
  virtual std::unique_ptr<CollectiveWay> duplicate(
      const GroupIdentity& identity, int number) const = 0;

  // See Backend.
  virtual void abort(std::string_view reason) noexcept = 0;
  virtual void leave() noexcept = 0;
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;
};

}  // namespace lockstep
