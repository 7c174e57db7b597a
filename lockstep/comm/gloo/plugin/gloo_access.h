// The protected members of Gloo's TCP transport that its public interface has
// no substitute for.
//
// Gloo's own waits close every connection of the group when they time out, and
// its own rendezvous takes the first connection that comes for the peer. So a
// request is looked at through its members, and a connection that we have made
// and checked is put in the place of Gloo's. And where a send of Gloo's meets a
// connection that has timed out, it waits for Gloo's thread, which may wait for
// what the sender holds: so a pair of ours leaves that to the thread. The
// check_layout() functions hold members and sizes against what the library
// does.
//
// Threads: as said at each function.
// Errors:  exceptions of Gloo and std::runtime_error.
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

// What became of one operation on an UnboundBuffer.
enum class GlooProgress { kPending, kDone, kBroken };
enum class GlooDirection { kSend, kReceive };

class GlooBuffer : public gloo::transport::tcp::UnboundBuffer {
  using Base = gloo::transport::tcp::UnboundBuffer;

 public:
  GlooBuffer() = delete;

  // Any thread.
  static GlooProgress look(Base& buffer);

  // Waits until look() may say something else than kPending, but no longer than
  // `patience`. One thread a buffer.
  static void wait(Base& buffer, GlooDirection direction,
                   std::chrono::microseconds patience);

  // Throws unless the members lie where the library has them. `buffer` is a new
  // one, and is of no use afterwards.
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

  // Throws unless the library's pairs have the size that this one is built on.
  // Makes one to `peer`, which is of no use.
  static void check_layout(Context& context, int peer);

  ~GlooPair() override;

  // A copy of its socket, the caller's to close; -1 once it is closed. Any
  // thread.
  int copy_socket();

  // Resets the connection. Any thread.
  void close() override;

  // Gloo's thread.
  void handleEvents(int events) override;

 protected:
  void changeState(state next) noexcept override;

 private:
  GlooPair(Context& context, Device& device, int peer);
  void adopt(int socket);

  // Guarded by m_.
  bool handling_ = false;
  bool owes_close_ = false;
};

}  // namespace lockstep
