#include "src/comm/shm/message_matcher.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Copies between a ring and plain memory; `position` counts all bytes since the
// start.
template <class Copy>
void for_each_part(std::uint64_t position, std::size_t bytes,
                   const Copy& copy_part) {
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t at = (position + done) % MessageChannel::kStreamBytes;
    const std::size_t part =
        std::min(bytes - done, MessageChannel::kStreamBytes - at);
    copy_part(at, done, part);
    done += part;
  }
}

}  // namespace

MessageMatcher::MessageMatcher(const ShmContext& context, Doorbell& bell)
    : context_(context),
      bell_(bell),
      outboxes_(index_of(context.identity.size)),
      inboxes_(index_of(context.identity.size)) {}

void MessageMatcher::post(Pointer message) {
  ++in_flight_;
  const int peer = message->operation.peer;
  if (message->operation.kind == OperationKind::kSend) {
    outboxes_[index_of(peer)].unannounced.push_back(std::move(message));
    return;
  }
  const auto envelope = std::ranges::find_if(kept_, [&](const Kept& kept) {
    return message->matches(kept.from, kept.tag);
  });
  if (envelope == kept_.end()) {
    receives_.push_back(std::move(message));
    return;
  }
  const Kept found = std::move(*envelope);
  kept_.erase(envelope);
  deliver(found, message);
}

void MessageMatcher::advance() {
  if (idle()) return;
  bool changed = false;
  for (int peer = 0; peer < context_.identity.size; ++peer) {
    if (peer == context_.identity.rank) continue;
    changed |= announce(peer);
    changed |= take_receipts(peer);
    changed |= stream_out(peer);
    changed |= take_envelopes(peer);
    changed |= send_receipts(peer);
    changed |= stream_in(peer);
  }
  if (changed) bell_.ring();
}

std::shared_ptr<ShmMessage> MessageMatcher::overdue() const {
  Pointer found;
  const auto look_at = [&](const Pointer& message) {
    if (message->deadline.expired()) found = message;
  };
  std::ranges::for_each(receives_, look_at);
  for (const Outbox& outbox : outboxes_) {
    std::ranges::for_each(outbox.unannounced, look_at);
    for (const auto& [number, message] : outbox.announced) look_at(message);
    std::ranges::for_each(outbox.streaming, look_at);
  }
  for (const Inbox& inbox : inboxes_)
    std::ranges::for_each(inbox.streaming, look_at);
  return found;
}

void MessageMatcher::complete(ShmMessage& message) {
  --in_flight_;
  message.done.store(true);
  bell_.ring_for_own();
}

// Writes envelopes while there is room for them.
bool MessageMatcher::announce(int to) {
  Outbox& outbox = outboxes_[index_of(to)];
  MessageChannel& channel = channel_to(to);
  bool changed = false;
  while (!outbox.unannounced.empty()) {
    const std::uint64_t number = channel.envelopes_sent.load();
    if (number - channel.envelopes_taken.load() == MessageChannel::kEnvelopes)
      break;
    const Pointer message = std::move(outbox.unannounced.front());
    outbox.unannounced.pop_front();
    const Buffer& buffer = message->buffer;
    MessageChannel::Envelope& envelope =
        channel.envelopes[number % MessageChannel::kEnvelopes];
    envelope.signature = signature_of(message->operation);
    envelope.tag = message->operation.tag;
    if (buffer.bytes() <= MessageChannel::kEnvelopeBytes) {
      envelope.place = Place::kInline;
      if (buffer.count > 0)
        std::memcpy(envelope.payload, buffer.data, buffer.bytes());
      complete(*message);
    } else {
      const auto piece = context_.heaps->find(buffer.data, buffer.bytes());
      message->in_heap = piece.has_value();
      envelope.place = piece ? Place::kHeap : Place::kStaged;
      envelope.piece = piece.value_or(Piece{});
      outbox.announced.emplace(number, message);
    }
    channel.envelopes_sent.store(number + 1);
    changed = true;
  }
  return changed;
}

bool MessageMatcher::take_receipts(int to) {
  Outbox& outbox = outboxes_[index_of(to)];
  if (outbox.announced.empty()) return false;
  MessageChannel& channel = channel_to(to);
  bool changed = false;
  while (channel.receipts_taken.load() != channel.receipts_sent.load()) {
    const std::uint64_t at = channel.receipts_taken.load();
    const auto sent = outbox.announced.find(
        channel.receipts[at % MessageChannel::kEnvelopes]);
    LOCKSTEP_CHECK(sent != outbox.announced.end(), "a receipt for no envelope");
    Pointer message = std::move(sent->second);
    outbox.announced.erase(sent);
    if (message->in_heap)
      complete(*message);
    else
      outbox.streaming.push_back(std::move(message));
    channel.receipts_taken.store(at + 1);
    changed = true;
  }
  return changed;
}

bool MessageMatcher::stream_out(int to) {
  Outbox& outbox = outboxes_[index_of(to)];
  MessageChannel& channel = channel_to(to);
  bool changed = false;
  while (!outbox.streaming.empty()) {
    ShmMessage& message = *outbox.streaming.front();
    const std::uint64_t sent = channel.bytes_sent.load();
    const std::size_t room =
        MessageChannel::kStreamBytes - (sent - channel.bytes_taken.load());
    const std::size_t bytes =
        std::min(room, message.buffer.bytes() - message.moved);
    if (bytes == 0) break;
    const auto* data =
        static_cast<const std::byte*>(message.buffer.data) + message.moved;
    for_each_part(sent, bytes,
                  [&](std::size_t at, std::size_t done, std::size_t part) {
                    std::memcpy(channel.stream + at, data + done, part);
                  });
    message.moved += bytes;
    channel.bytes_sent.store(sent + bytes);
    changed = true;
    if (message.moved < message.buffer.bytes()) break;
    complete(message);
    outbox.streaming.pop_front();
  }
  return changed;
}

MessageMatcher::Kept MessageMatcher::keep(
    const MessageChannel::Envelope& envelope, int from, std::uint64_t number) {
  Kept kept{
      from,           number, envelope.signature, envelope.tag, envelope.place,
      envelope.piece, {}};
  if (envelope.place != Place::kInline) return kept;
  const auto type = static_cast<DataType>(envelope.signature.type);
  const std::size_t bytes = std::min(
      MessageChannel::kEnvelopeBytes,
      static_cast<std::size_t>(envelope.signature.elements) * size_of(type));
  kept.payload.assign(envelope.payload, envelope.payload + bytes);
  return kept;
}

bool MessageMatcher::take_envelopes(int from) {
  MessageChannel& channel = channel_from(from);
  bool changed = false;
  while (!receives_.empty() &&
         channel.envelopes_taken.load() != channel.envelopes_sent.load()) {
    const std::uint64_t number = channel.envelopes_taken.load();
    Kept envelope = keep(channel.envelopes[number % MessageChannel::kEnvelopes],
                         from, number);
    channel.envelopes_taken.store(number + 1);
    changed = true;
    const auto receive = std::ranges::find_if(
        receives_,
        [&](const Pointer& one) { return one->matches(from, envelope.tag); });
    if (receive == receives_.end()) {
      kept_.push_back(std::move(envelope));
      continue;
    }
    const Pointer message = std::move(*receive);
    receives_.erase(receive);
    deliver(envelope, message);
  }
  return changed;
}

void MessageMatcher::deliver(const Kept& envelope, const Pointer& receive) {
  check_message(receive->operation, envelope.from, envelope.signature,
                context_.identity.name);
  receive->source = envelope.from;
  Inbox& inbox = inboxes_[index_of(envelope.from)];
  const Buffer& buffer = receive->buffer;
  switch (envelope.place) {
    case Place::kInline:
      if (buffer.count > 0)
        std::memcpy(buffer.data, envelope.payload.data(), buffer.bytes());
      return complete(*receive);
    case Place::kHeap: {
      const std::byte* const from =
          context_.heaps->at(envelope.from, envelope.piece);
      LOCKSTEP_CHECK(from != nullptr && envelope.piece.bytes == buffer.bytes(),
                     "an envelope names memory outside its sender's heap");
      std::memcpy(buffer.data, from, buffer.bytes());
      // The sender marks that it gives up before its memory changes: a receiver
      // that finds it present now has copied the sent bytes.
      std::atomic_thread_fence(std::memory_order_acquire);
      if (context_.control.rank(envelope.from).gave_up.load() != 0)
        return receives_.push_front(receive);  // ends as the group does
      owe_receipt(envelope);
      return complete(*receive);
    }
    case Place::kStaged:
      owe_receipt(envelope);
      inbox.streaming.push_back(receive);
      return;
  }
}

void MessageMatcher::owe_receipt(const Kept& envelope) {
  inboxes_[index_of(envelope.from)].receipts.push_back(envelope.number);
  ++owed_receipts_;
}

bool MessageMatcher::send_receipts(int from) {
  Inbox& inbox = inboxes_[index_of(from)];
  MessageChannel& channel = channel_from(from);
  bool changed = false;
  while (!inbox.receipts.empty()) {
    const std::uint64_t at = channel.receipts_sent.load();
    if (at - channel.receipts_taken.load() == MessageChannel::kEnvelopes) break;
    channel.receipts[at % MessageChannel::kEnvelopes] = inbox.receipts.front();
    inbox.receipts.pop_front();
    --owed_receipts_;
    channel.receipts_sent.store(at + 1);
    changed = true;
  }
  return changed;
}

bool MessageMatcher::stream_in(int from) {
  Inbox& inbox = inboxes_[index_of(from)];
  MessageChannel& channel = channel_from(from);
  bool changed = false;
  while (!inbox.streaming.empty()) {
    ShmMessage& message = *inbox.streaming.front();
    const std::uint64_t taken = channel.bytes_taken.load();
    const std::size_t bytes =
        std::min<std::size_t>(channel.bytes_sent.load() - taken,
                              message.buffer.bytes() - message.moved);
    if (bytes == 0) break;
    auto* data = static_cast<std::byte*>(message.buffer.data) + message.moved;
    for_each_part(taken, bytes,
                  [&](std::size_t at, std::size_t done, std::size_t part) {
                    std::memcpy(data + done, channel.stream + at, part);
                  });
    message.moved += bytes;
    channel.bytes_taken.store(taken + bytes);
    changed = true;
    if (message.moved < message.buffer.bytes()) break;
    complete(message);
    inbox.streaming.pop_front();
  }
  return changed;
}

}  // namespace lockstep
