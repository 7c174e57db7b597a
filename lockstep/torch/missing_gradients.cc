#include "lockstep/torch/missing_gradients.h"

#include <cstdint>
#include <map>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kNamesShown = 10;

std::string list_names(std::span<const std::string> names,
                       std::span<const std::uint8_t> is_missing) {
  std::string list;
  std::size_t count = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (is_missing[i] == 0) continue;
    if (++count <= kNamesShown) list += (count > 1 ? ", " : "") + names[i];
  }
  if (count > kNamesShown)
    list += " and " + std::to_string(count - kNamesShown) + " more";
  return list;
}

std::string list_ranks(std::span<const int> ranks) {
  std::string list = ranks.size() > 1 ? "ranks " : "rank ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    list += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return list;
}

}  // namespace

void throw_missing_gradients(ProcessGroup& group,
                             std::span<const std::string> names,
                             std::span<const std::size_t> missing) {
  std::vector<std::uint8_t> mine(names.size(), 0);
  for (const std::size_t parameter : missing) mine[parameter] = 1;
  const auto size = static_cast<std::size_t>(group.size());
  std::vector<std::uint8_t> all(names.size() * size);
  group.all_gather(view(mine), view(all), {.place = "missing gradients"})
      .wait();

  std::map<std::string, std::vector<int>>
      ranks_missing;  // by the list of names
  for (std::size_t rank = 0; rank < size; ++rank) {
    const auto theirs =
        std::span(all).subspan(rank * names.size(), names.size());
    const std::string list = list_names(names, theirs);
    if (!list.empty()) ranks_missing[list].push_back(static_cast<int>(rank));
  }
  std::string text = "backward on rank " + std::to_string(group.rank()) +
                     " of " + std::to_string(group.size()) + " (group \"" +
                     group.name() +
                     "\"): some parameters got no gradient, so there is no "
                     "average of this step";
  for (const auto& [list, ranks] : ranks_missing)
    text += "\n  missing: " + list + " on " + list_ranks(ranks);
  throw InvalidArgument(
      text +
      "\n  likely:  this step's loss does not depend on them\n"
      "  next:    use every parameter in forward(), or call "
      "requires_grad_(false) on those that stay unused before wrapping the "
      "module; then zero_grad() and go on");
}

}  // namespace lockstep
