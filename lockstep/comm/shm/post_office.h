// Messages between two ranks of a shared-memory group.
//
// A sender announces each message with a letter in the lane to the receiver:
// small ones are in it, others lie in the sender's heap, from which the
// receiver copies them, or are streamed through the lane once the receiver asks
// for them. Letters are matched with receives by source and tag, in order;
// those that nobody receives yet are kept, so that they hold up no others.
//
// Threads: one thread at a time, but for ShmMessage::done.
// Source:  MPI's matching rules (MPI 4.0, section 3.5).
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/comm/posted_message.h"
#include "lockstep/comm/shm/doorbell.h"
#include "lockstep/comm/shm/shared_operation.h"

namespace lockstep {

struct ShmMessage : PostedMessage {
  using PostedMessage::PostedMessage;

  bool in_heap = false;   // of a send: the receiver takes it from there
  std::size_t moved = 0;  // bytes that went through the stream
};

class PostOffice {
 public:
  explicit PostOffice(const ShmContext& context, Doorbell& bell);

  void post(std::shared_ptr<ShmMessage> message);

  // Goes as far as possible. Throws Mismatch when a message does not fit the
  // buffer it is received into.
  void advance();

  // A message whose deadline has passed; null when there is none.
  std::shared_ptr<ShmMessage> overdue() const;

  // Whether there is something that advance() may be needed for.
  bool idle() const { return in_flight_ == 0 && owed_receipts_ == 0; }

 private:
  using Pointer = std::shared_ptr<ShmMessage>;

  // What a rank sends to one other.
  struct Outbox {
    std::deque<Pointer> unannounced;
    std::map<std::uint64_t, Pointer> announced;  // by letter, need a receipt
    std::deque<Pointer> streaming;
  };
  // What a rank gets from one other.
  struct Inbox {
    std::deque<std::uint64_t> receipts;  // for which there was no room
    std::deque<Pointer> streaming;
  };
  // A letter that nobody has received yet.
  struct Kept {
    int from = 0;
    std::uint64_t number = 0;
    Signature signature{};
    std::int32_t tag = 0;
    Place place = Place::kInline;
    Piece piece{};
    std::vector<std::byte> payload;
  };

  Lane& lane_to(int peer) const {
    return context_.control.lane(context_.identity.rank, peer);
  }
  Lane& lane_from(int peer) const {
    return context_.control.lane(peer, context_.identity.rank);
  }
  bool announce(int to);
  bool take_receipts(int to);
  bool stream_out(int to);
  bool take_letters(int from);
  bool send_receipts(int from);
  bool stream_in(int from);
  static Kept keep(const Lane::Letter& letter, int from, std::uint64_t number);
  void deliver(const Kept& letter, const Pointer& receive);
  void owe_receipt(const Kept& letter);
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
