// An engine that carries out the operations of one group.
//
// To add one, implement this class in a folder of its own, register it in
// comm/registry.cc and add its line to the conformance suite.
//
// Threads: start() and abort() may be called from any thread; collectives are
//          carried out in the order in which start() was called. Sends and
//          receives are independent of them, and of each other but for this:
//          messages between two ranks with one tag arrive in order.
// Errors:  start() throws only for bugs; what goes wrong with an operation
//          surfaces in the Work's wait(). After the first error every later
//          operation fails at once.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/operation.h"
#include "lockstep/comm/work.h"

namespace lockstep {

class CapturedGraph;
class Heap;

// Who a backend is within its group.
struct GroupIdentity {
  std::string name = "default";
  int rank = 0;
  int size = 1;
  // members[r] is the rank within the job of rank r of this group; empty where
  // the two are the same.
  std::vector<int> members{};

  int rank_in_job(int r) const {
    return members.empty() ? r : members.at(static_cast<std::size_t>(r));
  }
  // For messages: "rank 1", and where it differs "(rank 5 of the job)".
  std::string describe(int r) const {
    const std::string text = "rank " + std::to_string(r);
    const int in_job = rank_in_job(r);
    return in_job == r
               ? text
               : text + " (rank " + std::to_string(in_job) + " of the job)";
  }
};

// The error of what was in flight when its rank left the group.
std::exception_ptr group_was_left(const GroupIdentity& identity);

class Backend {
 public:
  virtual ~Backend() = default;

  // "shm", "reference", …
  virtual std::string_view name() const = 0;

  // Whether start() can carry `operation` out. Depends only on what is the
  // same on every rank.
  virtual bool supports(const Operation& operation) const = 0;

  // Begins `operation`, whose fields have been validated.
  virtual Work start(const Operation& operation) = 0;

  // Ends every operation in flight, here and on the other ranks, with an
  // error, and makes the group unusable. Never blocks.
  virtual void abort(std::string_view reason) noexcept = 0;

  // Takes this rank out of the group, for good: what is in flight here ends
  // with an error, and peers that wait for this rank get PeerFailure, however
  // long a Work, finished or not, keeps this object alive. What was sent before
  // still arrives. Waits for no rank beyond a short goodbye; a second call does
  // nothing. Destructors leave as well.
  virtual void leave() noexcept = 0;

  // Memory of `bytes` bytes, 64-byte aligned and zeroed, in which this
  // backend's collectives are fastest; ordinary memory by default. Freed with
  // the pointer, which may outlive the backend. InvalidArgument for more than
  // can be addressed, std::bad_alloc where there is no room.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes);

  // The heap from which allocate() serves; null without one.
  virtual std::shared_ptr<Heap> heap() const { return nullptr; }

  // Ends the group, and throws why, when a rank is gone that did not leave in
  // good order: for whoever depends on them while no operation waits for them.
  virtual void look_around() {}

  // Makes part of `graph` what it is given from now on while `stream`, null for
  // the calling thread's, is in its present capture. Waits for nobody.
  // InvalidArgument where nothing can be captured.
  virtual void attach(const std::shared_ptr<CapturedGraph>& graph,
                      void* stream);

  // Whether a list of large buffers costs no more than one block: they are
  // reduced where they lie. The same on every rank.
  virtual bool reduces_in_place() const { return false; }

  // Another order of operations among the same ranks, over the connections and
  // the memory that this one has: neither waits for what is started in the
  // other. A failure of either ends both. `number` counts from 1, is the same
  // on every rank, and no two duplicates of this backend have one. Waits for no
  // rank. Null where can_duplicate() says that it makes none.
  virtual std::shared_ptr<Backend> duplicate(const GroupIdentity& /*identity*/,
                                             int /*number*/) {
    return nullptr;
  }
  virtual bool can_duplicate() const { return false; }
};

}  // namespace lockstep
