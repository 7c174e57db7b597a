// Messages between two ranks of a shared-memory group.
//
// A sender announces each message with an envelope in the channel to the
// receiver. A small message is in the envelope; a larger one lies in the
// sender's heap, from which the receiver copies it, or is streamed through the
// channel once the receiver asks for it. Messages are matched with receives by
// source and tag, in order; envelopes without a receive are kept, so that they
// do not block others.
//
// Threads: one thread at a time, except for ShmMessage::done.
// Source:  MPI's matching rules (MPI 4.0, section 3.5).
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "src/comm/operation/posted_message.h"
#include "src/comm/shm/doorbell.h"
#include "src/comm/shm/shared_operation.h"

namespace lockstep {

struct ShmMessage : PostedMessage {
  using PostedMessage::PostedMessage;

  bool in_heap = false;   // of a send: the receiver copies from the heap
  std::size_t moved = 0;  // bytes that have passed through the stream
};

class MessageMatcher {
 public:
  explicit MessageMatcher(const ShmContext& context, Doorbell& bell);

  void post(std::shared_ptr<ShmMessage> message);

  // Makes all possible progress. Throws Mismatch when a message does not match
  // the buffer of its receive.
  void advance();

  // A message whose deadline has passed, or null.
  std::shared_ptr<ShmMessage> overdue() const;

  // Whether advance() has nothing to do.
  bool idle() const { return in_flight_ == 0 && owed_receipts_ == 0; }

 private:
  using Pointer = std::shared_ptr<ShmMessage>;

  // This rank's sends to one other rank.
  struct Outbox {
    std::deque<Pointer> unannounced;
    std::map<std::uint64_t, Pointer> announced;  // by envelope, need a receipt
    std::deque<Pointer> streaming;
  };
  // This rank's state of the messages from one other rank.
  struct Inbox {
    std::deque<std::uint64_t> receipts;  // for which the channel had no room
    std::deque<Pointer> streaming;
  };
  // An envelope without a matching receive.
  struct Kept {
    int from = 0;
    std::uint64_t number = 0;
    Signature signature{};
    std::int32_t tag = 0;
    Place place = Place::kInline;
    Piece piece{};
    std::vector<std::byte> payload;
  };

  MessageChannel& channel_to(int peer) const {
    return context_.control.channel(context_.identity.rank, peer);
  }
  MessageChannel& channel_from(int peer) const {
    return context_.control.channel(peer, context_.identity.rank);
  }
  bool announce(int to);
  bool take_receipts(int to);
  bool stream_out(int to);
  bool take_envelopes(int from);
  bool send_receipts(int from);
  bool stream_in(int from);
  static Kept keep(const MessageChannel::Envelope& envelope, int from,
                   std::uint64_t number);
  void deliver(const Kept& envelope, const Pointer& receive);
  void owe_receipt(const Kept& envelope);
  void complete(ShmMessage& message);

  const ShmContext& context_;
  Doorbell& bell_;
  std::vector<Outbox> outboxes_;  // by rank
  std::vector<Inbox> inboxes_;    // by rank
  std::list<Pointer> receives_;   // not matched yet, oldest first
  std::list<Kept> kept_;          // oldest first
  std::size_t in_flight_ = 0;     // messages that are not done
  std::size_t owed_receipts_ = 0;
};

}  // namespace lockstep
