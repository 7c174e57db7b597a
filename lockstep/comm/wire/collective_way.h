// Another way in which a wire group carries some of its collectives out: the
// seam by which `hybrid` brings shared memory in.
//
// Threads: run() on the thread that carries out the group's collective; the
//          others from any thread.
// Errors:  run() throws what WireCore::give_up() takes.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "lockstep/comm/wire/wire_core.h"

namespace lockstep {

class CollectiveWay {
 public:
  virtual ~CollectiveWay() = default;

  // "hybrid"
  virtual std::string_view name() const = 0;

  // Whether run() carries `operation` out, which is not small. Depends only on
  // what is the same on every rank.
  virtual bool takes(const Operation& operation) const = 0;

  // `tag` and `tag + 1` are free for messages of the collective channel. When
  // this returns, nothing touches the operation's buffers any more; when it
  // throws, not until abort() was called and calm_down() has returned. Must not
  // tell others of the failure itself: its cause is not written down yet.
  virtual void run(WireCore& core, const Operation& operation, int tag,
                   Deadline deadline) = 0;

  virtual void calm_down() noexcept = 0;

  // The same on a duplicate of what it works on, as Backend's.
  virtual std::unique_ptr<CollectiveWay> duplicate(
      const GroupIdentity& identity, int number) const = 0;

  // As Backend.
  virtual void abort(std::string_view reason) noexcept = 0;
  virtual void leave() noexcept = 0;
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;
};

}  // namespace lockstep
