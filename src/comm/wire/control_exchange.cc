#include "src/comm/wire/control_exchange.h"

#include <cstring>

#include "src/comm/wire/arrivals.h"

namespace lockstep {

ControlExchange::ControlExchange(WireCore& core)
    : core_(core), peers_(static_cast<std::size_t>(core.size())) {
  for (int step = 1; step < core.size(); ++step) {
    const int rank = (core.rank() + step) % core.size();
    everyone_.push_back(rank);
    peer(rank).out.memory.resize(kMessageBytes);
    for (Mailbox& mailbox : peer(rank).in) {
      mailbox.memory.resize(kMessageBytes);
      post_if_there(rank, mailbox);
    }
  }
}

void ControlExchange::post(int rank, Mailbox& mailbox) {
  mailbox.request = core_.receive(
      {rank, kChannelControl, 0, mailbox.memory.data(), kMessageBytes});
}

// A rank's departure is an error only once another operation starts.
void ControlExchange::post_if_there(int rank, Mailbox& mailbox) {
  try {
    post(rank, mailbox);
  } catch (const TransportError&) {
    mailbox.request.reset();
  }
}

void ControlExchange::send(int rank, const AnnouncedCall& mine,
                           const FillExtra& extra, Deadline deadline) {
  Mailbox& out = peer(rank).out;
  // The last operation's send: done long ago, since the peer has answered it.
  core_.wait(out.request, deadline);
  out.request.reset();
  std::memcpy(out.memory.data(), &mine, sizeof mine);
  const std::size_t bytes =
      sizeof mine + extra(rank, std::span(out.memory).subspan(sizeof mine));
  out.request =
      core_.send({rank, kChannelControl, 0, out.memory.data(), bytes});
}

std::vector<AnnouncedCall> ControlExchange::run(std::span<const int> peers,
                                                const AnnouncedCall& mine,
                                                const FillExtra& extra,
                                                Deadline deadline) {
  last_.assign(peers.begin(), peers.end());
  Arrivals arrivals(core_);
  for (const int rank : peers) {
    if (!in(rank).request) post(rank, in(rank));
    arrivals.expect(in(rank).request);
  }
  for (const int rank : peers) send(rank, mine, extra, deadline);
  std::vector<AnnouncedCall> all(peers_.size(), mine);
  for (const int rank : peers) {
    arrivals.wait(in(rank).request, deadline);
    AnnouncedCall& theirs = all[static_cast<std::size_t>(rank)];
    std::memcpy(&theirs, in(rank).memory.data(), sizeof theirs);
    core_.saw(rank, theirs.signature);
  }
  return all;
}

const std::byte* ControlExchange::extra(int rank) const {
  const Peer& from = peers_[static_cast<std::size_t>(rank)];
  return from.in[from.turn % kAhead].memory.data() + sizeof(AnnouncedCall);
}

// Waits for the sends too: after an operation has returned, this rank may leave
// the group.
void ControlExchange::finish(Deadline deadline) {
  for (const int rank : last_) {
    core_.wait(peer(rank).out.request, deadline);
    in(rank).request.reset();
    post_if_there(rank, in(rank));
    ++peer(rank).turn;
  }
  last_.clear();
}

}  // namespace lockstep
