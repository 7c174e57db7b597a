#include "lockstep/comm/shm/post_office.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

// Copies between a ring and plain memory; `position` counts all bytes since the
// start.
template <class Copy>
void for_each_part(std::uint64_t position, std::size_t bytes,
                   const Copy& copy_part) {
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t at = (position + done) % Lane::kStreamBytes;
    const std::size_t part = std::min(bytes - done, Lane::kStreamBytes - at);
    copy_part(at, done, part);
    done += part;
  }
}

}  // namespace

PostOffice::PostOffice(const ShmContext& context, Doorbell& bell)
    : context_(context),
      bell_(bell),
      outboxes_(index(context.identity.size)),
      inboxes_(index(context.identity.size)) {}

void PostOffice::post(Pointer message) {
  ++in_flight_;
  const int peer = message->operation.peer;
  if (message->operation.kind == OperationKind::kSend) {
    outboxes_[index(peer)].unannounced.push_back(std::move(message));
    return;
  }
  const auto letter = std::ranges::find_if(kept_, [&](const Kept& kept) {
    return message->matches(kept.from, kept.tag);
  });
  if (letter == kept_.end()) {
    receives_.push_back(std::move(message));
    return;
  }
  const Kept found = std::move(*letter);
  kept_.erase(letter);
  deliver(found, message);
}

void PostOffice::advance() {
  if (idle()) return;
  bool changed = false;
  for (int peer = 0; peer < context_.identity.size; ++peer) {
    if (peer == context_.identity.rank) continue;
    changed |= announce(peer);
    changed |= take_receipts(peer);
    changed |= stream_out(peer);
    changed |= take_letters(peer);
    changed |= send_receipts(peer);
    changed |= stream_in(peer);
  }
  if (changed) bell_.ring();
}

std::shared_ptr<ShmMessage> PostOffice::overdue() const {
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

void PostOffice::complete(ShmMessage& message) {
  --in_flight_;
  message.done.store(true);
  bell_.ring();  // for other threads of this process
}

// Writes letters while there is room for them.
bool PostOffice::announce(int to) {
  Outbox& outbox = outboxes_[index(to)];
  Lane& lane = lane_to(to);
  bool changed = false;
  while (!outbox.unannounced.empty()) {
    const std::uint64_t number = lane.letters_sent.load();
    if (number - lane.letters_taken.load() == Lane::kLetters) break;
    const Pointer message = std::move(outbox.unannounced.front());
    outbox.unannounced.pop_front();
    const Buffer& buffer = message->buffer;
    Lane::Letter& letter = lane.letters[number % Lane::kLetters];
    letter.signature = signature_of(message->operation);
    letter.tag = message->operation.tag;
    if (buffer.bytes() <= Lane::kLetterBytes) {
      letter.place = Place::kInline;
      if (buffer.count > 0)
        std::memcpy(letter.payload, buffer.data, buffer.bytes());
      complete(*message);
    } else {
      const auto piece = context_.heaps->find(buffer.data, buffer.bytes());
      message->in_heap = piece.has_value();
      letter.place = piece ? Place::kHeap : Place::kStaged;
      letter.piece = piece.value_or(Piece{});
      outbox.announced.emplace(number, message);
    }
    lane.letters_sent.store(number + 1);
    changed = true;
  }
  return changed;
}

bool PostOffice::take_receipts(int to) {
  Outbox& outbox = outboxes_[index(to)];
  if (outbox.announced.empty()) return false;
  Lane& lane = lane_to(to);
  bool changed = false;
  while (lane.receipts_taken.load() != lane.receipts_sent.load()) {
    const std::uint64_t at = lane.receipts_taken.load();
    const auto sent = outbox.announced.find(lane.receipts[at % Lane::kLetters]);
    LOCKSTEP_CHECK(sent != outbox.announced.end(), "a receipt for no letter");
    Pointer message = std::move(sent->second);
    outbox.announced.erase(sent);
    if (message->in_heap)
      complete(*message);
    else
      outbox.streaming.push_back(std::move(message));
    lane.receipts_taken.store(at + 1);
    changed = true;
  }
  return changed;
}

bool PostOffice::stream_out(int to) {
  Outbox& outbox = outboxes_[index(to)];
  Lane& lane = lane_to(to);
  bool changed = false;
  while (!outbox.streaming.empty()) {
    ShmMessage& message = *outbox.streaming.front();
    const std::uint64_t sent = lane.bytes_sent.load();
    const std::size_t room =
        Lane::kStreamBytes - (sent - lane.bytes_taken.load());
    const std::size_t bytes =
        std::min(room, message.buffer.bytes() - message.moved);
    if (bytes == 0) break;
    const auto* data =
        static_cast<const std::byte*>(message.buffer.data) + message.moved;
    for_each_part(sent, bytes,
                  [&](std::size_t at, std::size_t done, std::size_t part) {
                    std::memcpy(lane.stream + at, data + done, part);
                  });
    message.moved += bytes;
    lane.bytes_sent.store(sent + bytes);
    changed = true;
    if (message.moved < message.buffer.bytes()) break;
    complete(message);
    outbox.streaming.pop_front();
  }
  return changed;
}

PostOffice::Kept PostOffice::keep(const Lane::Letter& letter, int from,
                                  std::uint64_t number) {
  Kept kept{from,         number, letter.signature, letter.tag, letter.place,
            letter.piece, {}};
  if (letter.place != Place::kInline) return kept;
  const auto type = static_cast<DataType>(letter.signature.type);
  const std::size_t bytes = std::min(
      Lane::kLetterBytes,
      static_cast<std::size_t>(letter.signature.elements) * size_of(type));
  kept.payload.assign(letter.payload, letter.payload + bytes);
  return kept;
}

bool PostOffice::take_letters(int from) {
  Lane& lane = lane_from(from);
  bool changed = false;
  while (!receives_.empty() &&
         lane.letters_taken.load() != lane.letters_sent.load()) {
    const std::uint64_t number = lane.letters_taken.load();
    Kept letter = keep(lane.letters[number % Lane::kLetters], from, number);
    lane.letters_taken.store(number + 1);
    changed = true;
    const auto receive = std::ranges::find_if(
        receives_,
        [&](const Pointer& one) { return one->matches(from, letter.tag); });
    if (receive == receives_.end()) {
      kept_.push_back(std::move(letter));
      continue;
    }
    const Pointer message = std::move(*receive);
    receives_.erase(receive);
    deliver(letter, message);
  }
  return changed;
}

void PostOffice::deliver(const Kept& letter, const Pointer& receive) {
  check_message(receive->operation, letter.from, letter.signature,
                context_.identity.name);
  receive->source = letter.from;
  Inbox& inbox = inboxes_[index(letter.from)];
  const Buffer& buffer = receive->buffer;
  switch (letter.place) {
    case Place::kInline:
      if (buffer.count > 0)
        std::memcpy(buffer.data, letter.payload.data(), buffer.bytes());
      return complete(*receive);
    case Place::kHeap: {
      const std::byte* const from =
          context_.heaps->at(letter.from, letter.piece);
      LOCKSTEP_CHECK(from != nullptr && letter.piece.bytes == buffer.bytes(),
                     "a letter names memory outside its sender's heap");
      std::memcpy(buffer.data, from, buffer.bytes());
      // The sender marks that it gives up before its memory changes: a receiver
      // that finds it present now has copied the sent bytes.
      std::atomic_thread_fence(std::memory_order_acquire);
      if (context_.control.rank(letter.from).gave_up.load() != 0)
        return receives_.push_front(receive);  // ends as the group does
      owe_receipt(letter);
      return complete(*receive);
    }
    case Place::kStaged:
      owe_receipt(letter);
      inbox.streaming.push_back(receive);
      return;
  }
}

void PostOffice::owe_receipt(const Kept& letter) {
  inboxes_[index(letter.from)].receipts.push_back(letter.number);
  ++owed_receipts_;
}

bool PostOffice::send_receipts(int from) {
  Inbox& inbox = inboxes_[index(from)];
  Lane& lane = lane_from(from);
  bool changed = false;
  while (!inbox.receipts.empty()) {
    const std::uint64_t at = lane.receipts_sent.load();
    if (at - lane.receipts_taken.load() == Lane::kLetters) break;
    lane.receipts[at % Lane::kLetters] = inbox.receipts.front();
    inbox.receipts.pop_front();
    --owed_receipts_;
    lane.receipts_sent.store(at + 1);
    changed = true;
  }
  return changed;
}

bool PostOffice::stream_in(int from) {
  Inbox& inbox = inboxes_[index(from)];
  Lane& lane = lane_from(from);
  bool changed = false;
  while (!inbox.streaming.empty()) {
    ShmMessage& message = *inbox.streaming.front();
    const std::uint64_t taken = lane.bytes_taken.load();
    const std::size_t bytes = std::min<std::size_t>(
        lane.bytes_sent.load() - taken, message.buffer.bytes() - message.moved);
    if (bytes == 0) break;
    auto* data = static_cast<std::byte*>(message.buffer.data) + message.moved;
    for_each_part(taken, bytes,
                  [&](std::size_t at, std::size_t done, std::size_t part) {
                    std::memcpy(data + done, lane.stream + at, part);
                  });
    message.moved += bytes;
    lane.bytes_taken.store(taken + bytes);
    changed = true;
    if (message.moved < message.buffer.bytes()) break;
    complete(message);
    inbox.streaming.pop_front();
  }
  return changed;
}

}  // namespace lockstep
