#include "src/comm/hybrid/calls_of_host.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace lockstep {
namespace {

// Before the different calls and the numbers of the ranks' calls among them.
struct CallsHead {
  std::uint32_t calls = 0;
  std::uint32_t ranks = 0;
};
using CallNumber = std::uint16_t;

template <class T>
void append(std::vector<std::byte>& to, std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  to.insert(to.end(), bytes.begin(), bytes.end());
}

// The values at the front of `from`, which becomes the rest; default ones if it
// is too short.
template <class T>
std::vector<T> take(std::span<const std::byte>& from, std::size_t count) {
  std::vector<T> values(count);
  const std::size_t bytes = count * sizeof(T);
  if (bytes > from.size()) return values;
  if (bytes > 0) std::memcpy(values.data(), from.data(), bytes);
  from = from.subspan(bytes);
  return values;
}

bool are_equal(const AnnouncedCall& a, const AnnouncedCall& b) {
  return a.signature == b.signature && a.label_text() == b.label_text();
}

}  // namespace

void append_calls(std::vector<std::byte>& message,
                  std::span<const AnnouncedCall> calls,
                  std::size_t most_bytes) {
  // At least half of the room is for the calls.
  const std::size_t ranks =
      std::min(calls.size(), most_bytes / 2 / sizeof(CallNumber));
  const std::size_t most_calls =
      (most_bytes - sizeof(CallsHead) - ranks * sizeof(CallNumber)) /
      sizeof(AnnouncedCall);
  std::vector<AnnouncedCall> different;
  std::vector<CallNumber> numbers(ranks);
  for (std::size_t i = 0; i < ranks; ++i) {
    const auto same = std::ranges::find_if(
        different,
        [&](const AnnouncedCall& each) { return are_equal(each, calls[i]); });
    const auto number =
        static_cast<std::size_t>(std::distance(different.begin(), same));
    if (number == most_calls) continue;
    if (number == different.size()) different.push_back(calls[i]);
    numbers[i] = static_cast<CallNumber>(number);
  }
  const CallsHead head{static_cast<std::uint32_t>(different.size()),
                       static_cast<std::uint32_t>(ranks)};
  append(message, std::span(&head, 1));
  append<AnnouncedCall>(message, different);
  append<CallNumber>(message, numbers);
}

std::vector<AnnouncedCall> read_calls(std::span<const std::byte> message,
                                      std::size_t ranks) {
  const CallsHead head = take<CallsHead>(message, 1).front();
  const auto different = take<AnnouncedCall>(
      message, std::min<std::size_t>(head.calls,
                                     message.size() / sizeof(AnnouncedCall)));
  const auto numbers =
      take<CallNumber>(message, std::min<std::size_t>(head.ranks, ranks));
  std::vector<AnnouncedCall> calls(ranks);
  for (std::size_t i = 0; i < ranks && !different.empty(); ++i) {
    const std::size_t number = i < numbers.size() ? numbers[i] : 0;
    calls[i] = different[number < different.size() ? number : 0];
  }
  return calls;
}

}  // namespace lockstep
