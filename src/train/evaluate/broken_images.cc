#include "src/train/evaluate/broken_images.h"

#include <cstddef>
#include <cstring>
#include <vector>

#include "lockstep/comm/objects.h"
#include "src/base/first_line.h"

namespace lockstep {
namespace {

void append_number(std::vector<std::byte>& bytes, std::int64_t number) {
  const auto raw = std::as_bytes(std::span(&number, 1));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

// The inverse; removes the number from `bytes`.
std::int64_t take_number(std::span<const std::byte>& bytes) {
  std::int64_t number = 0;
  std::memcpy(&number, bytes.data(), sizeof number);
  bytes = bytes.subspan(sizeof number);
  return number;
}

}  // namespace

void BrokenImages::add(std::span<const BrokenSample> samples) {
  for (const BrokenSample& sample : samples)
    messages_.emplace(sample.index, first_line(sample.message));
}

std::optional<std::string> BrokenImages::summary(ProcessGroup& group) const {
  // The number of images, their indices, and the first message.
  std::vector<std::byte> own;
  append_number(own, std::ssize(messages_));
  for (const auto& [index, message] : messages_) append_number(own, index);
  if (!messages_.empty()) {
    const auto text = std::as_bytes(std::span(messages_.begin()->second));
    own.insert(own.end(), text.begin(), text.end());
  }
  // A file may have been met by several ranks, in different epochs.
  std::map<std::int64_t, std::string> all;
  for (const auto& gathered :
       all_gather_bytes(group, own, {.label = "broken images"})) {
    std::span<const std::byte> rest = gathered;
    std::vector<std::int64_t> indices;
    for (std::int64_t left = take_number(rest); left > 0; --left)
      indices.push_back(take_number(rest));
    for (const std::int64_t index : indices) all.try_emplace(index);
    if (!indices.empty())
      all[indices[0]].assign(reinterpret_cast<const char*>(rest.data()),
                             rest.size());
  }
  if (all.empty()) return std::nullopt;
  const std::string image(words_.image), fate(words_.fate);
  return (all.size() == 1 ? "1 " + image + " was broken and " + fate + ": "
                          : std::to_string(all.size()) + " " + image +
                                "s were broken and " + fate + ", the first: ") +
         all.begin()->second;
}

}  // namespace lockstep
