// An engine that carries out the operations of one group.
//
// To add one, implement this class in a folder of its own, register it in
// src/comm/group/registry.cc and add its line to the conformance suite.
//
// Threads: start() and abort() may be called from any thread; collectives are
//          carried out in the order in which start() was called. Sends and
//          receives are independent of them and of each other, except that
//          messages between two ranks with one tag arrive in order.
// Errors:  start() throws only for bugs; an operation's errors surface in its
//          Work's wait(). After the first error every later operation fails at
//          once.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/comm/operation/operation.h"
#include "src/comm/operation/pending_work.h"

namespace lockstep {

class CapturedGraph;
class Heap;

// How the part of a duplicate begins, before its number.
inline constexpr std::string_view kDuplicatePart = " (duplicate ";

// The rank that a backend serves, and its group.
struct GroupIdentity {
  // For messages: the one that users know.
  std::string name = "default";
  int rank = 0;
  int size = 1;
  // members[r] is the rank in the job of this group's rank r; empty if the two
  // numberings are the same.
  std::vector<int> members{};
  // Distinguishes what Lockstep makes of one group: its duplicates, the ranks
  // of a host, its GPUs.
  std::string part{};

  // For keys in the store, and records.
  std::string full_name() const { return name + part; }
  int rank_in_job(int r) const {
    return members.empty() ? r : members.at(static_cast<std::size_t>(r));
  }
  // For messages: "rank 1", followed by "(rank 5 of the job)" if that differs.
  std::string describe(int r) const {
    const std::string text = "rank " + std::to_string(r);
    const int in_job = rank_in_job(r);
    return in_job == r
               ? text
               : text + " (rank " + std::to_string(in_job) + " of the job)";
  }
};

// The error of operations in flight when their rank leaves the group.
std::exception_ptr group_was_left(const GroupIdentity& identity);

class Backend {
 public:
  virtual ~Backend() = default;

  // "shm", "reference", …
  virtual std::string_view name() const = 0;

  // Whether start() can carry `operation` out. The answer depends only on
  // values that are the same on every rank.
  virtual bool supports(const Operation& operation) const = 0;

  // Begins `operation`, whose fields have been validated.
  virtual Work start(const Operation& operation) = 0;

  // Ends every operation in flight, here and on the other ranks, with an
  // error, and makes the group unusable. Never blocks.
  virtual void abort(std::string_view reason) noexcept = 0;

  // Takes this rank out of the group for good: its operations in flight end
  // with an error, and peers that wait for this rank get PeerFailure, even if a
  // Work, finished or not, keeps this object alive. Messages sent before still
  // arrive. The call does not wait for other ranks beyond a short goodbye; a
  // second call does nothing. Destructors leave as well.
  virtual void leave() noexcept = 0;

  // Memory of `bytes` bytes, 64-byte aligned and zeroed, in which this
  // backend's collectives are fastest; ordinary memory by default. It is freed
  // with the pointer, which may outlive the backend. Throws InvalidArgument for
  // more bytes than can be addressed, std::bad_alloc when memory is full.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes);

  // The heap from which allocate() serves; null without one.
  virtual std::shared_ptr<Heap> heap() const { return nullptr; }

  // Ends the group, and throws the reason, when a rank is gone that did not
  // leave in good order. For callers that depend on the other ranks while no
  // operation waits for them.
  virtual void check_peers() {}

  // Makes the operations started from now on, while `stream` (null: the calling
  // thread's) is in its present capture, part of `graph`. Does not wait. Throws
  // InvalidArgument if the backend cannot be captured.
  virtual void attach(const std::shared_ptr<CapturedGraph>& graph,
                      void* stream);

  // Whether a list of large buffers costs no more than one block, because they
  // are reduced in place. The same on every rank.
  virtual bool reduces_in_place() const { return false; }

  // Another order of operations among the same ranks, over this backend's
  // connections and memory: neither waits for operations of the other. A
  // failure of either ends both. `number` counts from 1, is the same on every
  // rank, and is unique among the duplicates of this backend. Does not wait for
  // other ranks. Null if can_duplicate() is false.
  virtual std::shared_ptr<Backend> duplicate(const GroupIdentity& /*identity*/,
                                             int /*number*/) {
    return nullptr;
  }
  virtual bool can_duplicate() const { return false; }
};

}  // namespace lockstep
