#include "src/comm/wire/control_exchange.h"

#include <cstring>

#include "src/comm/wire/arrivals.h"

namespace lockstep {

ControlExchange::ControlExchange(WireCore& core) : core_(core) {
  for (int step = 1; step < core.size(); ++step)
    everyone_.push_back((core.rank() + step) % core.size());
}

// Posts the receives ahead in the first exchange with this rank.
void ControlExchange::begin_with(int rank) {
  Peer& peer = this->peer(rank);
  const auto make_room = [](Mailbox& mailbox) {
    mailbox.memory = std::make_unique_for_overwrite<std::byte[]>(kMessageBytes);
  };
  if (!peer.out.memory) {
    make_room(peer.out);
    for (Mailbox& mailbox : peer.in) {
      make_room(mailbox);
      post(rank, mailbox);
    }
  }
  if (!in(rank).request) post(rank, in(rank));
}

void ControlExchange::post(int rank, Mailbox& mailbox) {
  mailbox.request = core_.receive(
      {rank, kChannelControl, 0, mailbox.memory.get(), kMessageBytes});
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
  std::memcpy(out.memory.get(), &mine, sizeof mine);
  const std::size_t bytes =
      sizeof mine + extra(rank, {out.memory.get() + sizeof mine, kInlineBytes});
  out.request = core_.send({rank, kChannelControl, 0, out.memory.get(), bytes});
}

std::vector<AnnouncedCall> ControlExchange::run(std::span<const int> peers,
                                                const AnnouncedCall& mine,
                                                const FillExtra& extra,
                                                Deadline deadline) {
  last_.assign(peers.begin(), peers.end());
  const WireCore::Needed needed(core_, [this] { check(last_); });
  Arrivals arrivals(core_);
  for (const int rank : peers) {
    begin_with(rank);
    arrivals.expect(in(rank).request);
  }
  for (const int rank : peers) send(rank, mine, extra, deadline);
  std::vector<AnnouncedCall> all(static_cast<std::size_t>(core_.size()), mine);
  for (const int rank : peers) {
    arrivals.wait(in(rank).request, deadline);
    AnnouncedCall& theirs = all[static_cast<std::size_t>(rank)];
    std::memcpy(&theirs, in(rank).memory.get(), sizeof theirs);
    core_.saw(rank, theirs.signature);
  }
  return all;
}

void ControlExchange::check(std::span<const int> peers) {
  for (const int rank : peers) {
    begin_with(rank);
    in(rank).request.done();
    peer(rank).out.request.done();
  }
}

const std::byte* ControlExchange::extra(int rank) const {
  const Peer& from = peers_.at(rank);
  return from.in[from.turn % kAhead].memory.get() + sizeof(AnnouncedCall);
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
