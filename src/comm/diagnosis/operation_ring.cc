// Each slot is two cache lines. The first holds the words of every operation,
// the second those of operations that are pending or have a label.
//
// A writer takes a number, marks the slot's stamp as being written, fills the
// words in and stores the final stamp. Each of these stores releases the
// previous ones, so a reader that acquires every word and finds the same stamp
// before and after has seen no word of another writer. (No fences: the thread
// sanitizer does not know them, and on x86 these orders are free.)
#include "src/comm/diagnosis/operation_ring.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "src/base/printable.h"

namespace lockstep {
namespace {

// The words of a slot.
constexpr std::size_t kStamp = 0;
constexpr std::size_t kStarted = 1;  // ticks
constexpr std::size_t kEnded = 2;
constexpr std::size_t kSignature = 3;  // four words
constexpr std::size_t kGroup = 7;      // and, above, the length of the label
constexpr std::size_t kTicket = 8;
constexpr std::size_t kAwaited = 9;
constexpr std::size_t kLabel = 10;  // six words

// A stamp: 0 for an unused slot, 1 while it is written, else the entry's number
// plus 1 above its state.
constexpr std::uint64_t kWriting = 1;
constexpr int kStateBits = 2;

constexpr std::uint64_t stamp_of(std::uint64_t number, OperationState state) {
  return (number + 1) << kStateBits | static_cast<std::uint64_t>(state);
}

constexpr auto kRelease = std::memory_order_release;
constexpr auto kAcquire = std::memory_order_acquire;

using SignatureWords = std::array<std::uint64_t, 4>;

Signature signature_from(const SignatureWords& words) {
  return {.sequence = words[0],
          .elements = words[1],
          .layout = static_cast<std::uint32_t>(words[2]),
          .kind = static_cast<std::uint8_t>(words[2] >> 32),
          .type = static_cast<std::uint8_t>(words[2] >> 40),
          .reduction = static_cast<std::uint8_t>(words[2] >> 48),
          .division = static_cast<std::uint8_t>(words[2] >> 56),
          .root = static_cast<std::int32_t>(words[3]),
          .buffers = static_cast<std::uint32_t>(words[3] >> 32)};
}

// The signature, with a message's peer and tag in place of root and layout. It
// is written word by word: reading a word that was just written in parts makes
// the processor wait for all of them.
template <class Words>
void store_signature(Words& words, const Operation& operation) {
  const Signature signature = signature_of(operation);
  const bool is_message = is_point_to_point(operation.kind);
  const int root = is_message ? operation.peer : signature.root;
  const auto layout =
      is_message ? static_cast<std::uint32_t>(operation.tag) : signature.layout;
  words[kSignature].store(signature.sequence, kRelease);
  words[kSignature + 1].store(signature.elements, kRelease);
  words[kSignature + 2].store(std::uint64_t{layout} |
                                  std::uint64_t{signature.kind} << 32 |
                                  std::uint64_t{signature.type} << 40 |
                                  std::uint64_t{signature.reduction} << 48 |
                                  std::uint64_t{signature.division} << 56,
                              kRelease);
  words[kSignature + 3].store(std::uint64_t{static_cast<std::uint32_t>(root)} |
                                  std::uint64_t{signature.buffers} << 32,
                              kRelease);
}

}  // namespace

std::string_view name_of(OperationState state) {
  switch (state) {
    case OperationState::kStarted:
      return "started";
    case OperationState::kCompleted:
      return "completed";
    case OperationState::kFailed:
      return "failed";
  }
  return "unknown state";
}

std::uint64_t OperationRing::begin(std::uint32_t group,
                                   const Operation& operation) {
  const std::uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
  auto& words = slot(number).words;
  // Another writer may have been stopped while writing this slot for a whole
  // turn of the ring: it keeps the slot, and this operation is not recorded.
  if (words[kStamp].exchange(kWriting, std::memory_order_acq_rel) == kWriting)
    return number;
  words[kStarted].store(read_ticks(), kRelease);
  store_signature(words, operation);
  std::array<char, kLabelBytes> label{};
  const std::size_t length = copy_shortened(operation.label, label);
  words[kGroup].store(std::uint64_t{length} << 32 | group, kRelease);
  words[kTicket].store(0, kRelease);
  words[kAwaited].store(0, kRelease);
  for (std::size_t at = 0; at < length; at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, label.data() + at, sizeof word);
    words[kLabel + at / sizeof word].store(word, kRelease);
  }
  words[kStamp].store(stamp_of(number, OperationState::kStarted), kRelease);
  return number;
}

bool OperationRing::holds(std::uint64_t number) {
  return slot(number).words[kStamp].load(kAcquire) ==
         stamp_of(number, OperationState::kStarted);
}

void OperationRing::set_ticket(std::uint64_t number, std::uint64_t ticket) {
  if (holds(number)) slot(number).words[kTicket].store(ticket, kRelease);
}

void OperationRing::set_awaited(std::uint64_t number) {
  if (holds(number)) slot(number).words[kAwaited].store(1, kRelease);
}

// If the entry is overwritten between the check and the stores, a newer entry
// gets a wrong end time, which settling it replaces.
bool OperationRing::settle(std::uint64_t number, OperationState state) {
  if (!holds(number)) return false;
  auto& words = slot(number).words;
  words[kEnded].store(read_ticks(), kRelease);
  std::uint64_t expected = stamp_of(number, OperationState::kStarted);
  return words[kStamp].compare_exchange_strong(
      expected, stamp_of(number, state), std::memory_order_acq_rel);
}

std::optional<Signature> OperationRing::find(std::uint64_t number) {
  SignatureWords signature;
  for (std::size_t i = 0; i < signature.size(); ++i)
    signature[i] = slot(number).words[kSignature + i].load(kAcquire);
  if (!holds(number)) return std::nullopt;
  return signature_from(signature);
}

std::optional<OperationRing::Words> OperationRing::read(const Slot& slot) {
  Words words;
  for (std::size_t i = 0; i < kWords; ++i)
    words[i] = slot.words[i].load(kAcquire);
  const bool whole =
      slot.words[kStamp].load(std::memory_order_relaxed) == words[kStamp];
  if (!whole || words[kStamp] <= kWriting) return std::nullopt;
  return words;
}

RingEntry OperationRing::decode(const Words& words) {
  RingEntry entry;
  entry.number = (words[kStamp] >> kStateBits) - 1;
  entry.state =
      static_cast<OperationState>(words[kStamp] & ((1u << kStateBits) - 1));
  SignatureWords signature;
  std::copy_n(&words[kSignature], signature.size(), signature.begin());
  entry.signature = signature_from(signature);
  if (is_point_to_point(static_cast<OperationKind>(entry.signature.kind))) {
    entry.peer = entry.signature.root;
    entry.tag = static_cast<int>(entry.signature.layout);
    entry.signature.root = 0;
    entry.signature.layout = 0;
  }
  entry.group = static_cast<std::uint32_t>(words[kGroup]);
  entry.label.assign(reinterpret_cast<const char*>(&words[kLabel]),
                     std::min<std::size_t>(words[kGroup] >> 32, kLabelBytes));
  entry.ticket = words[kTicket];
  entry.awaited = words[kAwaited] != 0;
  return entry;
}

std::vector<RingEntry> OperationRing::read() const {
  const TickClock clock(made_, TickMoment());
  std::vector<RingEntry> entries;
  entries.reserve(kEntries);
  for (const Slot& slot : slots_) {
    const auto words = read(slot);
    if (!words) continue;
    RingEntry entry = decode(*words);
    entry.started = clock.time_of((*words)[kStarted]);
    if (entry.state != OperationState::kStarted)
      entry.ended = clock.time_of((*words)[kEnded]);
    entries.push_back(std::move(entry));
  }
  std::ranges::sort(entries, {}, &RingEntry::number);
  return entries;
}

}  // namespace lockstep
