#include "src/comm/group/same_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::int64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char letter : text) {
    hash ^= static_cast<unsigned char>(letter);
    hash *= 0x100000001b3;
  }
  return static_cast<std::int64_t>(hash);
}

std::vector<std::string> gather_texts(ProcessGroup& group,
                                      const std::string& text,
                                      std::size_t longest) {
  std::vector<std::int8_t> mine(longest, 0);
  std::ranges::copy(text, mine.begin());
  const auto size = static_cast<std::size_t>(group.size());
  std::vector<std::int8_t> all(longest * size);
  group.all_gather(view(mine), view(all), {.label = "descriptions"}).wait();
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < size; ++rank) {
    const auto* begin = reinterpret_cast<const char*>(&all[rank * longest]);
    texts.emplace_back(begin, std::find(begin, begin + longest, '\0'));
  }
  return texts;
}

// The first line in which `a` and `b` differ, as `a` has it.
std::string first_difference(std::string_view a, std::string_view b) {
  while (!a.empty()) {
    const auto line = a.substr(0, a.find('\n') + 1);
    if (!b.starts_with(line))
      return std::string(line.substr(0, line.size() - 1));
    a.remove_prefix(line.size());
    b.remove_prefix(line.size());
  }
  return "no such line";
}

// The ranks whose text differs from rank 0's.
std::vector<std::size_t> ranks_unlike_the_first(
    std::span<const std::string> texts) {
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 1; rank < texts.size(); ++rank)
    if (texts[rank] != texts[0]) ranks.push_back(rank);
  return ranks;
}

[[noreturn]] void throw_different(const ProcessGroup& group,
                                  std::span<const std::string> texts,
                                  const TextDifference& difference) {
  const std::vector<std::size_t> unlike = ranks_unlike_the_first(texts);
  const std::size_t first = unlike.front();
  throw Mismatch(fmt::format(
      "the ranks of group \"{}\" {} (seen on rank {} of {})\n"
      "  rank 0:  {}\n  rank {}:  {}\n  differ:  rank 0 and rank {}\n"
      "  likely:  {}\n  next:    {}",
      group.name(), difference.what, group.rank(), group.size(),
      first_difference(texts[0], texts[first]), first,
      first_difference(texts[first], texts[0]), fmt::join(unlike, ", "),
      difference.likely, difference.next));
}

}  // namespace

std::vector<std::string> texts_if_different(ProcessGroup& group,
                                            const std::string& text) {
  if (group.size() == 1) return {};
  const std::vector<std::int64_t> mine{hash_of(text),
                                       static_cast<std::int64_t>(text.size())};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(group.size()));
  group.all_gather(view(mine), view(all), {.label = "hashes of descriptions"})
      .wait();
  std::int64_t longest = 0;
  bool same = true;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    same = same && all[i] == all[0] && all[i + 1] == all[1];
    longest = std::max(longest, all[i + 1]);
  }
  if (same) return {};
  return gather_texts(group, text, static_cast<std::size_t>(longest));
}

void check_same_text(ProcessGroup& group, const std::string& text,
                     const TextDifference& difference) {
  const std::vector<std::string> texts = texts_if_different(group, text);
  if (!texts.empty()) throw_different(group, texts, difference);
}

}  // namespace lockstep
