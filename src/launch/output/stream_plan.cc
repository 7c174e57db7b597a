#include "src/launch/output/stream_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "src/base/number_in.h"

namespace lockstep {
namespace {

// Not below 0.
std::optional<int> index_in(std::string_view text) {
  const auto number = number_in<int>(text);
  return number && *number >= 0 ? number : std::nullopt;
}

[[noreturn]] void refuse_choice(std::string_view flag, std::string_view text,
                                std::string_view form) {
  throw InvalidArgument(
      fmt::format("{} is \"{}\"; it must be {}", flag, text, form));
}

constexpr std::string_view kForm =
    "0 (no stream), 1 (standard output), 2 (standard error) or 3 (both), or "
    "such a number per local rank, as in 0:1,1:3";

std::optional<StreamSet> streams_in(std::string_view text) {
  const auto number = index_in(text);
  if (!number || *number > kBothStreams) return std::nullopt;
  return static_cast<StreamSet>(*number);
}

// The parts of `text` between commas.
std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

StreamChoice StreamChoice::parse(std::string_view flag, std::string_view text) {
  StreamChoice choice;
  if (const auto all = streams_in(text)) {
    choice.all_ = *all;
    return choice;
  }
  for (const std::string_view part : parts_of(text)) {
    const std::size_t colon = part.find(':');
    if (colon == std::string_view::npos) refuse_choice(flag, text, kForm);
    const auto rank = index_in(part.substr(0, colon));
    const auto streams = streams_in(part.substr(colon + 1));
    if (!rank || !streams ||
        !choice.by_local_rank_.emplace(*rank, *streams).second)
      refuse_choice(flag, text, kForm);
  }
  return choice;
}

StreamSet StreamChoice::of(int local_rank) const {
  const auto found = by_local_rank_.find(local_rank);
  return found == by_local_rank_.end() ? all_ : found->second;
}

StreamSet StreamPlan::logged(int local_rank) const {
  if (!redirects && !tee) return kBothStreams;
  const auto of = [&](const std::optional<StreamChoice>& choice) {
    return choice ? choice->of(local_rank) : kNoStream;
  };
  return static_cast<StreamSet>(of(redirects) | of(tee));
}

StreamSet StreamPlan::shown(int local_rank) const {
  if (!shown_local_ranks.empty() &&
      std::ranges::find(shown_local_ranks, local_rank) ==
          shown_local_ranks.end())
    return kNoStream;
  unsigned hidden = redirects ? redirects->of(local_rank) : kNoStream;
  if (tee) hidden &= ~static_cast<unsigned>(tee->of(local_rank));
  return static_cast<StreamSet>(kBothStreams & ~hidden);
}

std::vector<int> parse_local_ranks(std::string_view flag,
                                   std::string_view text) {
  std::vector<int> ranks;
  for (const std::string_view part : parts_of(text)) {
    const auto rank = index_in(part);
    if (!rank) refuse_choice(flag, text, "local ranks, as in 0,2");
    ranks.push_back(*rank);
  }
  return ranks;
}

}  // namespace lockstep
