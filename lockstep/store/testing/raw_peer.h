// A peer on a socket that says what it likes: either end of a store's
// connection, well-behaved or not.
//
// Threads: one object, one thread at a time.
// Errors:  those of socket.h.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/net/file_descriptor.h"
#include "lockstep/store/store.h"

namespace lockstep {

class RawPeer {
 public:
  explicit RawPeer(FileDescriptor socket);
  // Connected to whoever listens at `port` of 127.0.0.1.
  explicit RawPeer(int port);

  // Returns when all is sent, or the other side has hung up.
  void say(std::span<const std::byte> bytes);
  void say(std::string_view text) { say(to_bytes(text)); }

  // What a client says first.
  void introduce(std::string_view token);

  // At least `count` bytes; fewer only when the other side hangs up.
  Bytes hear(std::size_t count);

  // All that comes before the other side hangs up.
  std::string hear_all();

 private:
  FileDescriptor socket_;
};

}  // namespace lockstep
