#include "src/evaluate/broken_images.h"

#include <cstddef>
#include <sstream>
#include <utility>
#include <vector>

#include "lockstep/comm/groups.h"
#include "src/base/first_line.h"

namespace lockstep {

void BrokenImages::add(std::span<const BrokenSample> samples) {
  for (const BrokenSample& sample : samples)
    messages_.emplace(sample.index, first_line(sample.message));
}

std::map<std::int64_t, std::string> BrokenImages::of_all_ranks(
    ProcessGroup& group) const {
  std::string own;
  for (const auto& [index, message] : messages_)
    own += std::to_string(index) + " " + message + "\n";
  std::map<std::int64_t, std::string> all;
  for (const auto& gathered : all_gather_bytes(
           group, std::as_bytes(std::span(own)), {.label = "broken images"})) {
    std::istringstream lines(std::string(
        reinterpret_cast<const char*>(gathered.data()), gathered.size()));
    std::int64_t index = 0;
    // A file may have been met by several ranks, in different epochs.
    for (std::string message;
         lines >> index && lines.get() == ' ' && std::getline(lines, message);)
      all.try_emplace(index, std::move(message));
  }
  return all;
}

std::optional<std::string> BrokenImages::summary(ProcessGroup& group) const {
  const auto all = of_all_ranks(group);
  if (all.empty()) return std::nullopt;
  const std::string image(words_.image), fate(words_.fate);
  return (all.size() == 1 ? "1 " + image + " was broken and " + fate + ": "
                          : std::to_string(all.size()) + " " + image +
                                "s were broken and " + fate + ", the first: ") +
         all.begin()->second;
}

}  // namespace lockstep
