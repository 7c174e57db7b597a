// A peer on a socket that sends arbitrary bytes: either end of a store's
// connection, correct or not.
//
// Threads: one thread at a time per object.
// Errors:  those of socket.h.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/store/store.h"
#include "src/net/file_descriptor.h"
#include "src/store/token_proof.h"

namespace lockstep {

class RawPeer {
 public:
  explicit RawPeer(FileDescriptor socket);
  // Connects to `port` of 127.0.0.1.
  explicit RawPeer(int port);

  // Returns when all bytes are sent or the other side has hung up.
  void say(std::span<const std::byte> bytes);
  void say(std::string_view text) { say(to_bytes(text)); }

  // Sends a client's greeting, and its answer to the server's introduction,
  // which it does not verify.
  void greet();
  void prove_to_have(std::string_view token);
  void introduce(std::string_view token) {
    greet();
    prove_to_have(token);
  }

  // Sends a server's greeting, and its answer to the client's; it does not
  // verify the client's proof.
  void introduce_as_server(std::string_view token);

  // Reads `count` bytes; fewer only when the other side hangs up.
  Bytes hear(std::size_t count);

  // Reads until the other side hangs up.
  std::string hear_all();

 private:
  FileDescriptor socket_;
  Challenge challenge_ = random_value<Challenge>();
};

}  // namespace lockstep
