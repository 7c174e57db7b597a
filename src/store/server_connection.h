// One connection of a store's server: bytes in, frames out, and the client's
// state.
//
// Never blocks. Memory is bounded: the server reads nothing while an answer is
// unsent, so a connection holds at most one frame, one read and one answer.
//
// Threads: one thread at a time per object.
// Errors:  NetworkError for a frame beyond the limit.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/store/store.h"
#include "src/net/file_descriptor.h"
#include "src/net/frame.h"
#include "src/store/token_proof.h"

namespace lockstep {

class ServerConnection {
 public:
  enum class State {
    kPreamble,   // has sent nothing
    kChallenge,  // has sent the preamble
    kProof,      // has our proof, and must prove that it has the token
    kWelcome,    // may send requests
    kRefused,    // receives the reason; its input is dropped
    kEnded,      // the client closed it, or the server must
  };

  // The client has until `introduction` to become welcome.
  ServerConnection(FileDescriptor socket, Deadline introduction);

  State state() const { return state_; }
  Deadline introduction() const { return introduction_; }
  int descriptor() const { return socket_.get(); }

  // Sends our answer to `challenge`; then awaits the client's proof.
  void introduce(std::string_view token, std::string_view job,
                 const Challenge& challenge);
  // Whether `proof` shows that the client has `token` and belongs to `job`.
  bool has_proved(std::string_view token, std::string_view job,
                  const Proof& proof) const;
  void welcome();
  void end() { state_ = State::kEnded; }

  // Sends `message`, then closes our direction. The connection stays until the
  // client has hung up: closing it earlier could overtake the message.
  void refuse(std::span<const std::byte> message);

  // Returns the preamble if it has arrived; then awaits the challenge.
  std::optional<std::span<const std::byte>> next_preamble();
  std::optional<std::span<const std::byte>> next_frame();

  // The events to wait for: POLLIN or POLLOUT.
  short events() const;

  // Reads a bounded number of the bytes that have arrived.
  void receive();
  // Sends `message` after all earlier bytes.
  void send(std::span<const std::byte> message);
  // Sends as many bytes as fit.
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
