#include "src/torch/gradient/missing_gradients.h"

#include <algorithm>
#include <map>
#include <vector>

#include "src/base/report_text.h"

namespace lockstep {
namespace {

constexpr std::size_t kNamesShown = 10;
constexpr auto kMissing =
    static_cast<std::uint8_t>(MissingGradients::Mark::kMissing);
constexpr auto kAbsent =
    static_cast<std::uint8_t>(MissingGradients::Mark::kAbsent);
constexpr auto kSparse =
    static_cast<std::uint8_t>(MissingGradients::Mark::kSparse);

std::string list_names(std::span<const std::string> names,
                       std::span<const std::uint8_t> marks) {
  std::string list;
  std::size_t count = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (marks[i] != kMissing) continue;
    if (++count <= kNamesShown) list += (count > 1 ? ", " : "") + names[i];
  }
  if (count > kNamesShown)
    list += " and " + std::to_string(count - kNamesShown) + " more";
  return list;
}

}  // namespace

MissingGradients::Mark MissingGradients::sparse_mark(std::uint8_t dimensions) {
  return dimensions == 0 ? Mark::kArrived
                         : static_cast<Mark>(kSparse + dimensions);
}

MissingGradients::MissingGradients(ProcessGroup& group,
                                   std::span<const Mark> marks)
    : parameters_(marks.size()),
      ranks_(static_cast<std::size_t>(group.size())),
      marks_(parameters_ * ranks_) {
  std::vector<std::uint8_t> mine;
  mine.reserve(marks.size());
  for (const Mark mark : marks) mine.push_back(static_cast<std::uint8_t>(mark));
  group.all_gather(view(mine), view(marks_), {.label = "missing gradients"})
      .wait();
}

std::span<const std::uint8_t> MissingGradients::of_rank(
    std::size_t rank) const {
  return std::span(marks_).subspan(rank * parameters_, parameters_);
}

bool MissingGradients::everywhere(std::size_t parameter) const {
  for (std::size_t rank = 0; rank < ranks_; ++rank)
    if (const auto mark = of_rank(rank)[parameter];
        mark != kMissing && mark != kAbsent)
      return false;
  return true;
}

bool MissingGradients::some_missing() const {
  return std::ranges::find(marks_, kMissing) != marks_.end();
}

std::uint8_t MissingGradients::sparse_dimensions(std::size_t parameter) const {
  std::uint8_t most = kSparse;
  for (std::size_t rank = 0; rank < ranks_; ++rank)
    most = std::max(most, of_rank(rank)[parameter]);
  return static_cast<std::uint8_t>(most - kSparse);
}

std::string MissingGradients::lines(std::span<const std::string> names) const {
  std::map<std::string, std::vector<int>> ranks_missing;  // by the list
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const std::string list = list_names(names, of_rank(rank));
    if (!list.empty()) ranks_missing[list].push_back(static_cast<int>(rank));
  }
  std::string text;
  for (const auto& [list, ranks] : ranks_missing)
    text += "\n  missing: " + list + " on " + name_ranks(ranks);
  return text;
}

}  // namespace lockstep
