// A plug-in's transport as a C++ class, with ownership and exceptions, which
// connects two ranks when the first of them has a message for the other.
//
// A message to or from a rank that is not connected yet begins to connect it,
// and waits in a queue. Once the two are connected, that costs one atomic load
// per message.
//
// Threads: every method may be called from any thread; a Request belongs to one
//          thread at a time and must be destroyed before its transport.
// Errors:  TransportError.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "src/base/mutex.h"
#include "src/comm/wire/mesh.h"
#include "src/comm/wire/transport.h"

namespace lockstep {

// A transport's error; GroupFault turns it into an error of the group.
class TransportError : public Error {
 public:
  TransportError(LockstepTransportStatus status, int peer,
                 const std::string& why)
      : Error(why), status_(status), peer_(peer) {}

  LockstepTransportStatus status() const { return status_; }
  // The rank whose connection broke; -1 for any other error.
  int peer() const { return status_ == kTransportBroken ? peer_ : -1; }

 private:
  LockstepTransportStatus status_;
  int peer_;
};

class MessageTransport {
  struct Queued;

 public:
  class Request {
   public:
    Request() = default;
    ~Request() { reset(); }
    Request(Request&& other) noexcept { *this = std::move(other); }
    Request& operator=(Request&& other) noexcept;

    explicit operator bool() const {
      return request_ != nullptr || queued_ != nullptr;
    }
    // The receiver or sender.
    int peer() const { return peer_; }

    // Waits up to `timeout`; returns whether it is done.
    bool wait(std::chrono::microseconds timeout);
    bool done() { return wait(std::chrono::microseconds(0)); }
    // Releases it; a request that is not done is kept until the transport
    // closes, unless its rank is not connected yet.
    void reset();

   private:
    friend class MessageTransport;
    Request(MessageTransport& transport, int peer)
        : transport_(&transport), peer_(peer) {}

    MessageTransport* transport_ = nullptr;
    // At most one of the two is set.
    LockstepTransportRequest* request_ = nullptr;
    std::shared_ptr<Queued> queued_;
    int peer_ = -1;
    bool done_ = false;
  };

  // `mesh` makes the connections that `config` does not contain; null if the
  // transport makes its own.
  MessageTransport(const LockstepTransportTable& table,
                   const LockstepTransportConfig& config,
                   std::unique_ptr<Mesh> mesh = nullptr);
  ~MessageTransport();
  MessageTransport(const MessageTransport&) = delete;
  MessageTransport& operator=(const MessageTransport&) = delete;

  // The memory must live until the request is done or destroyed.
  Request send(const LockstepTransportMessage& message);
  Request receive(const LockstepTransportMessage& message);

  // Begins to connect `peer`, if nothing has done so yet.
  void connect(int peer);

  // While it lives, calls `action` for each other rank once that is connected
  // or cannot be, in which case a message to it throws: at once for the ranks
  // of which that is known, later on a thread of the transport, and sometimes
  // twice. The action must not make or destroy a ConnectionWatch.
  class ConnectionWatch {
   public:
    ConnectionWatch(MessageTransport& transport,
                    std::function<void(int peer)> action);
    ~ConnectionWatch();
    ConnectionWatch(const ConnectionWatch&) = delete;
    ConnectionWatch& operator=(const ConnectionWatch&) = delete;

   private:
    friend class MessageTransport;
    MessageTransport& transport_;
    const std::function<void(int)> action_;
  };

  // Makes no further connections, and drops the messages that wait for one.
  // Does not return before a connection that is being made is there.
  void stop_connecting() noexcept;

  // This rank leaves in good order: messages whose requests are done still
  // arrive, the others are dropped at once, and peers see that this rank is
  // gone.
  void leave() noexcept;

  // Breaks all pending messages, here and on the peers. Afterwards no thread
  // touches the memory of released requests, nor that of the others once they
  // are destroyed.
  void close() noexcept;

 private:
  using PostFunction = decltype(LockstepTransportTable::post_send);

  enum class State { kApart, kCalled, kConnected, kUnreachable };
  struct Lane {
    std::atomic<State> state{State::kApart};  // changes under mutex_
    std::list<std::shared_ptr<Queued>> queue;
    // Why it is unreachable.
    LockstepTransportStatus status = kTransportNotYet;
    std::string why;
  };
  Lane& lane(int peer) { return lanes_[static_cast<std::size_t>(peer)]; }

  Request post(PostFunction posts, const LockstepTransportMessage& message);
  LockstepTransportRequest* post_now(PostFunction posts,
                                     const LockstepTransportMessage& message);
  void call(int peer, Lane& lane) LOCKSTEP_REQUIRES(mutex_);
  void attach(int peer, const FileDescriptor& socket);
  void post_queue(Lane& lane) LOCKSTEP_REQUIRES(mutex_);
  void be_unreachable(int peer, LockstepTransportStatus status,
                      const std::string& why);
  void tell_watches(int peer);
  bool leaves_queue(Request& request, Deadline deadline);
  void drop(const std::shared_ptr<Queued>& queued);
  void end_queues() noexcept;
  void keep(LockstepTransportRequest* request);
  void release_kept() noexcept;
  [[noreturn]] static void fail(LockstepTransportStatus status,
                                const LockstepTransportOutcome& outcome);

  const LockstepTransportTable& table_;
  LockstepTransport* transport_ = nullptr;
  Mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Lane> lanes_;  // queues and reasons are guarded by mutex_
  bool left_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // Afterwards the transport takes releases of requests that are not done.
  bool has_ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<LockstepTransportRequest*> kept_ LOCKSTEP_GUARDED_BY(mutex_);
  Mutex watches_mutex_;  // if both are held, it was taken first
  std::vector<ConnectionWatch*> watches_ LOCKSTEP_GUARDED_BY(watches_mutex_);
  const std::unique_ptr<Mesh> mesh_;
};

}  // namespace lockstep
