#include "src/store/server_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <utility>

#include "src/net/socket.h"
#include "src/store/store_protocol.h"

namespace lockstep {
namespace {

constexpr std::size_t kReceiveBytes = std::size_t{1} << 16;
constexpr std::size_t kKeptBytes = std::size_t{1} << 18;

}  // namespace

ServerConnection::ServerConnection(FileDescriptor socket, Deadline introduction)
    : socket_(std::move(socket)),
      introduction_(introduction),
      reader_(kMaxIntroductionBytes) {}

void ServerConnection::introduce(std::string_view token, std::string_view job,
                                 const Challenge& challenge) {
  challenges_ = {.client = challenge, .server = random_value<Challenge>()};
  state_ = State::kProof;
  send(make_frame(encode(Introduction{
      challenges_.server, prove(token, Prover::kServer, challenges_, job)})));
}

bool ServerConnection::has_proved(std::string_view token, std::string_view job,
                                  const Proof& proof) const {
  return equal_in_constant_time(
      proof, prove(token, Prover::kClient, challenges_, job));
}

void ServerConnection::welcome() {
  state_ = State::kWelcome;
  introduction_ = Deadline::never();
  reader_.set_max_frame_bytes(kMaxStoreFrameBytes);
}

void ServerConnection::refuse(std::span<const std::byte> message) {
  send(message);
  if (state_ == State::kEnded) return;
  state_ = State::kRefused;
  ::shutdown(socket_.get(), SHUT_WR);
}

std::optional<std::span<const std::byte>> ServerConnection::next_preamble() {
  const auto preamble = reader_.next_bytes(kPreambleBytes);
  if (preamble) state_ = State::kChallenge;
  return preamble;
}

std::optional<std::span<const std::byte>> ServerConnection::next_frame() {
  return reader_.next_frame();
}

short ServerConnection::events() const {
  return has_unsent() ? POLLOUT : POLLIN;
}

void ServerConnection::receive() {
  std::array<std::byte, kReceiveBytes> room;
  const Transfer read = receive_some(socket_.get(), room);
  if (read.ended) end();
  if (state_ == State::kRefused || state_ == State::kEnded) return;
  reader_.append(std::span(room).first(read.bytes));
}

void ServerConnection::send(std::span<const std::byte> message) {
  outgoing_.insert(outgoing_.end(), message.begin(), message.end());
  flush();
}

void ServerConnection::flush() {
  if (state_ == State::kEnded || !has_unsent()) return;
  const Transfer written =
      send_some(socket_.get(), std::span(outgoing_).subspan(sent_));
  if (written.ended) end();
  sent_ += written.bytes;
  if (has_unsent()) return;
  outgoing_.clear();
  sent_ = 0;
  if (outgoing_.capacity() > kKeptBytes) outgoing_.shrink_to_fit();
}

}  // namespace lockstep
