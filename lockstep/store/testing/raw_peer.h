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
#include "lockstep/store/token_proof.h"

namespace lockstep {

class RawPeer {
 public:
  explicit RawPeer(FileDescriptor socket);
  // Connected to whoever listens at `port` of 127.0.0.1.
  explicit RawPeer(int port);

  // Returns when all is sent, or the other side has hung up.
  void say(std::span<const std::byte> bytes);
  void say(std::string_view text) { say(to_bytes(text)); }

  // What a client says first, and what it says to the server's introduction,
  // which it takes for right.
  void greet();
  void prove_to_have(std::string_view token);
  void introduce(std::string_view token) {
    greet();
    prove_to_have(token);
  }

  // What a server says first, and what it says to the client's greeting; the
  // client's proof is taken for right.
  void introduce_as_server(std::string_view token);

  // `count` bytes; fewer only when the other side hangs up.
  Bytes hear(std::size_t count);

  // All that comes before the other side hangs up.
  std::string hear_all();

 private:
  FileDescriptor socket_;
  Challenge challenge_ = random_value<Challenge>();
};

}  // namespace lockstep
