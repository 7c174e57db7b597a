#include "src/store/testing/raw_peer.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

#include "src/base/testing/test_timeout.h"
#include "src/net/frame.h"
#include "src/net/socket.h"
#include "src/net/wait.h"
#include "src/store/store_protocol.h"

namespace lockstep {

RawPeer::RawPeer(FileDescriptor socket) : socket_(std::move(socket)) {}

RawPeer::RawPeer(int port) : RawPeer(connect_to("127.0.0.1", port, kTimeout)) {}

void RawPeer::say(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const Transfer sent = send_some(socket_.get(), bytes);
    if (sent.ended) return;
    bytes = bytes.subspan(sent.bytes);
    if (!bytes.empty()) wait_for(socket_.get(), POLLOUT, kTimeout);
  }
}

void RawPeer::greet() {
  say(store_preamble());
  say(make_frame(encode(challenge_)));
}

void RawPeer::prove_to_have(std::string_view token) {
  hear(kPreambleBytes + kFrameHeaderBytes);
  const Introduction server = parse_introduction(hear(sizeof(Introduction)));
  say(make_frame(
      encode(prove(token, Prover::kClient,
                   {.client = challenge_, .server = server.challenge}))));
}

void RawPeer::introduce_as_server(std::string_view token) {
  say(store_preamble());
  hear(kPreambleBytes + kFrameHeaderBytes);
  const Challenges challenges{.client = parse_secret(hear(sizeof(Challenge))),
                              .server = challenge_};
  say(make_frame(encode(
      Introduction{challenge_, prove(token, Prover::kServer, challenges)})));
}

Bytes RawPeer::hear(std::size_t count) {
  Bytes heard;
  while (heard.size() < count) {
    wait_for(socket_.get(), POLLIN, kTimeout);
    std::array<std::byte, 1 << 16> room;
    const Transfer read = receive_some(
        socket_.get(),
        std::span(room).first(std::min(room.size(), count - heard.size())));
    if (read.ended) break;
    const auto arrived = std::span(room).first(read.bytes);
    heard.insert(heard.end(), arrived.begin(), arrived.end());
  }
  return heard;
}

std::string RawPeer::hear_all() { return to_text(hear(SIZE_MAX)); }

}  // namespace lockstep
