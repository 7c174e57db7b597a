// Access to protected members of Gloo's TCP transport, where its public
// interface has no substitute.
//
// Gloo's waits close every connection of the group when they time out, and its
// rendezvous accepts the first incoming connection as the peer's. So this code
// reads a request's state from its members, and replaces Gloo's connection by
// one that we have made and checked. A Gloo send on a connection that has timed
// out waits for Gloo's thread, which may wait for a lock of the sender: our
// pair leaves the closing to that thread. The check_layout() functions compare
// members and sizes with the loaded library.
//
// Threads: see each function.
// Errors:  Gloo's exceptions and std::runtime_error.
#pragma once

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>

namespace lockstep {

// The state of one operation on an UnboundBuffer.
enum class GlooProgress { kPending, kDone, kBroken };
enum class GlooDirection { kSend, kReceive };

class GlooBuffer : public gloo::transport::tcp::UnboundBuffer {
  using Base = gloo::transport::tcp::UnboundBuffer;

 public:
  GlooBuffer() = delete;

  // Any thread.
  static GlooProgress look(Base& buffer);

  // Waits until look() may return something other than kPending, at most
  // `timeout`. One thread per buffer.
  static void wait(Base& buffer, GlooDirection direction,
                   std::chrono::microseconds timeout);

  // Why it is kBroken; empty if it is not. Any thread.
  static std::string error_of(Base& buffer);

  // Throws unless the members lie where the library has them. `buffer` must be
  // new, and is unusable afterwards.
  static void check_layout(Base& buffer);

 private:
  static GlooProgress look_locked(Base& buffer);
};

// The connection to one peer. Its context owns it.
class GlooPair : public gloo::transport::tcp::Pair {
  using Base = gloo::transport::tcp::Pair;
  using Context = gloo::transport::tcp::Context;
  using Device = gloo::transport::tcp::Device;

 public:
  // Makes the pair of `context` to `peer`, on a copy of the connected `socket`.
  static void connect(Context& context, Device& device, int peer, int socket);

  // Throws unless the library's pairs have the size that this class was
  // compiled with. Makes an unusable pair to `peer`.
  static void check_layout(Context& context, int peer);

  ~GlooPair() override;

  // A copy of its socket, which the caller closes; -1 once the pair is closed.
  // Any thread.
  int copy_socket();

  // Resets the connection. Any thread.
  void close() override;

  // Called by Gloo's thread.
  void handleEvents(int events) override;

 protected:
  void changeState(state next) noexcept override;

 private:
  GlooPair(Context& context, Device& device, int peer);
  void adopt(int peer, int socket);

  // Guarded by m_.
  bool handling_ = false;
  bool owes_close_ = false;
};

}  // namespace lockstep
