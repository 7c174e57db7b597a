// The protected members of Gloo's TCP transport that its public interface has
// no substitute for.
//
// Gloo's own waits close every connection of the group when they time out, and
// its own rendezvous takes the first connection that comes for the peer. So a
// request is looked at through its members, and a connection that we have made
// and checked is put in the place of Gloo's. Only members that come before
// those of unknown layout are touched; check_layout() holds them against what
// the library does.
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

class GlooPair : public gloo::transport::tcp::Pair {
  using Base = gloo::transport::tcp::Pair;

 public:
  GlooPair() = delete;

  // Puts a copy of the connected `socket` in the place of the listening one.
  // Before any other use of the pair.
  static void adopt(Base& pair, gloo::transport::tcp::Device& device,
                    int socket);

  // The pair's socket, -1 once it is closed. Any thread.
  static int socket(Base& pair);
};

}  // namespace lockstep
