// A plug-in's transport as a C++ class, with ownership and exceptions.
//
// Threads: every method may be called from any thread; a Request belongs to one
//          thread at a time and must be destroyed before its transport.
// Errors:  TransportError.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/mutex.h"
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
 public:
  class Request {
   public:
    Request() = default;
    Request(MessageTransport& transport, LockstepTransportRequest* request,
            int peer)
        : transport_(&transport), request_(request), peer_(peer) {}
    ~Request() { reset(); }
    Request(Request&& other) noexcept
        : transport_(other.transport_),
          request_(std::exchange(other.request_, nullptr)),
          peer_(other.peer_),
          done_(other.done_) {}
    Request& operator=(Request&& other) noexcept;

    explicit operator bool() const { return request_ != nullptr; }
    // The receiver or sender.
    int peer() const { return peer_; }

    // Waits up to `timeout`; returns whether it is done.
    bool wait(std::chrono::microseconds timeout);
    bool done() { return wait(std::chrono::microseconds(0)); }
    // Releases it; a request that is not done is kept until the transport
    // closes.
    void reset();

   private:
    MessageTransport* transport_ = nullptr;
    LockstepTransportRequest* request_ = nullptr;
    int peer_ = -1;
    bool done_ = false;
  };

  MessageTransport(const LockstepTransportTable& table,
                   const LockstepTransportConfig& config);
  ~MessageTransport();
  MessageTransport(const MessageTransport&) = delete;
  MessageTransport& operator=(const MessageTransport&) = delete;

  // The memory must live until the request is done or destroyed.
  Request send(const LockstepTransportMessage& message);
  Request receive(const LockstepTransportMessage& message);

  // This rank leaves in good order: messages sent before still arrive, receives
  // under way are dropped at once, and peers see that this rank is gone.
  void leave() noexcept;

  // Breaks all pending messages, here and on the peers. Afterwards no thread
  // touches the memory of released requests, nor that of the others once they
  // are destroyed.
  void close() noexcept;

 private:
  Request post(decltype(LockstepTransportTable::post_send) posts,
               const LockstepTransportMessage& message);
  void keep(LockstepTransportRequest* request);
  void release_kept() noexcept;
  [[noreturn]] static void fail(LockstepTransportStatus status,
                                const LockstepTransportOutcome& outcome);

  const LockstepTransportTable& table_;
  LockstepTransport* transport_ = nullptr;
  Mutex mutex_;
  bool left_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<LockstepTransportRequest*> kept_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
