#include "src/store/tcp_connection.h"

#include <fmt/format.h>
#include <poll.h>

#include <array>
#include <utility>

#include "lockstep/base/error.h"
#include "src/net/socket.h"

namespace lockstep {
namespace {

constexpr std::size_t kAnswerBytes = std::size_t{1} << 16;

void append(Bytes& to, std::span<const std::byte> data) {
  to.insert(to.end(), data.begin(), data.end());
}

}  // namespace

TcpConnection::TcpConnection(FileDescriptor socket,
                             const ClientIdentity& identity,
                             const StoreCall& call, Deadline deadline,
                             const Cancellation* cancellation)
    : socket_(std::move(socket)), reader_(sizeof(Introduction)) {
  const auto challenge = random_value<Challenge>();
  append(outgoing_, store_preamble());
  append(outgoing_, make_frame(encode(challenge)));
  const Wait wait{call, deadline, cancellation};
  check_preamble(wait);
  prove_to_server(identity, challenge, wait);
  Verdict verdict = parse_verdict(next_frame(wait));
  if (!verdict.is_welcome)
    throw NetworkError(fmt::format(
        "{} was turned away: {}\n"
        "  next:    give every rank the same LOCKSTEP_TOKEN, and check that no "
        "other job serves its store at this address",
        call.text(), verdict.text));
  server_ = std::move(verdict.text);
}

void TcpConnection::check_preamble(const Wait& wait) {
  auto preamble = reader_.next_bytes(kPreambleBytes);
  while (!preamble) {
    exchange(wait);
    preamble = reader_.next_bytes(kPreambleBytes);
  }
  const auto version = read_preamble(*preamble);
  if (!version)
    throw NetworkError(fmt::format(
        "{} failed: the server there is not a Lockstep store\n"
        "  next:    check host and port (MASTER_ADDR and MASTER_PORT)",
        wait.call.text()));
  if (*version != kStoreProtocolVersion)
    throw NetworkError(fmt::format(
        "{} failed: the server speaks version {} of the protocol, this process "
        "version {}\n"
        "  next:    use the same version of Lockstep on every rank",
        wait.call.text(), *version, kStoreProtocolVersion));
}

void TcpConnection::prove_to_server(const ClientIdentity& identity,
                                    const Challenge& challenge,
                                    const Wait& wait) {
  const Introduction server = parse_introduction(next_frame(wait));
  const Challenges challenges{.client = challenge, .server = server.challenge};
  const auto proof_of = [&](Prover prover) {
    return prove(identity.token, prover, challenges, identity.job);
  };
  if (!equal_in_constant_time(server.proof, proof_of(Prover::kServer)))
    throw NetworkError(fmt::format(
        "{} failed: the server {}does not have this process's job token{}\n"
        "  likely:  LOCKSTEP_TOKEN is missing or different on one side, or "
        "another job serves its store at this address\n"
        "  next:    give every rank the same LOCKSTEP_TOKEN, and each job its "
        "own address",
        wait.call.text(),
        identity.job.empty() ? "" : "belongs to another job, or ",
        identity.token.empty() ? ", which is empty" : ""));
  reader_.set_max_frame_bytes(kMaxStoreFrameBytes);
  append(outgoing_, make_frame(encode(proof_of(Prover::kClient))));
}

Answer TcpConnection::call(const StoreCall& call, Request& request,
                           Deadline deadline,
                           const Cancellation* cancellation) {
  request.id = ++last_id_;
  const Wait wait{call, deadline, cancellation};
  append(outgoing_, make_frame(encode(request)));
  while (true) {
    Answer answer = parse_answer(next_frame(wait));
    // Other answers belong to earlier calls that gave up.
    if (answer.id == request.id) return answer;
  }
}

std::span<const std::byte> TcpConnection::next_frame(const Wait& wait) {
  while (true) {
    if (const auto frame = reader_.next_frame()) return *frame;
    exchange(wait);
  }
}

void TcpConnection::exchange(const Wait& wait) {
  const auto unsent = std::span(outgoing_).subspan(sent_);
  if (!unsent.empty()) {
    const Transfer written = send_some(socket_.get(), unsent);
    // The server's last message may hold the reason, so keep reading.
    sent_ = written.ended ? outgoing_.size() : sent_ + written.bytes;
  }
  if (sent_ == outgoing_.size()) {
    outgoing_.clear();
    sent_ = 0;
  }
  const short events =
      static_cast<short>(outgoing_.empty() ? POLLIN : POLLIN | POLLOUT);
  wait.call.check(
      wait_for(socket_.get(), events, wait.deadline, wait.cancellation));
  std::array<std::byte, kAnswerBytes> room;
  const Transfer read = receive_some(socket_.get(), room);
  if (read.ended && server_.empty())
    throw ConnectionDropped(fmt::format(
        "{} failed: the server closed the connection before it gave a verdict\n"
        "  likely:  the process that serves the store has ended, or it has too "
        "many open connections\n"
        "  next:    read the log of the rank, or the launcher, that serves it",
        wait.call.text()));
  if (read.ended) wait.call.fail_connection("the server closed the connection");
  reader_.append(std::span(room).first(read.bytes));
}

}  // namespace lockstep
