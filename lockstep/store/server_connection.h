// One connection of a store's server: bytes in, frames out, and who it is.
//
// Never blocks. Memory is bounded: nothing is read while an answer is unsent,
// so that it holds one frame and one read of what arrives, and one answer.
//
// Threads: one object, one thread at a time.
// Errors:  NetworkError for a frame beyond the limit.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/net/file_descriptor.h"
#include "lockstep/net/frame.h"
#include "lockstep/store/store.h"
#include "lockstep/store/token_proof.h"

namespace lockstep {

class ServerConnection {
 public:
  enum class State {
    kPreamble,   // has said nothing
    kChallenge,  // speaks our protocol
    kProof,      // has our proof, and is to prove that it has the token
    kWelcome,    // may ask
    kRefused,    // is being told why not: what it says is dropped
    kEnded,      // closed by the other side, or to be closed by ours
  };

  // It has until `introduction` to become welcome.
  ServerConnection(FileDescriptor socket, Deadline introduction);

  State state() const { return state_; }
  Deadline introduction() const { return introduction_; }
  int descriptor() const { return socket_.get(); }

  // Sends our answer to `challenge`, and waits for the client's proof then.
  void introduce(std::string_view token, const Challenge& challenge);
  // Whether `proof` shows that the client has `token`.
  bool has_proved(std::string_view token, const Proof& proof) const;
  void welcome();
  void end() { state_ = State::kEnded; }

  // Sends `message`, then closes our direction. The connection stays until the
  // client has hung up: closing it earlier could overtake the message.
  void refuse(std::span<const std::byte> message);

  // Takes the preamble if it has arrived, and waits for the challenge then.
  std::optional<std::span<const std::byte>> next_preamble();
  std::optional<std::span<const std::byte>> next_frame();

  // What to poll(2) for.
  short events() const;

  // Reads a bounded amount of what has arrived.
  void receive();
  // Sends `message` when what came before it is sent.
  void send(std::span<const std::byte> message);
  // Sends what fits.
  void flush();
  bool has_unsent() const { return sent_ < outgoing_.size(); }

 private:
  FileDescriptor socket_;
  Deadline introduction_;
  State state_ = State::kPreamble;
  Challenges challenges_;
  FrameReader reader_;
  Bytes outgoing_;
  std::size_t sent_ = 0;
};

}  // namespace lockstep
