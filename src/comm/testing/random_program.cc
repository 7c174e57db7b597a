#include "src/comm/testing/random_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace lockstep {
namespace {

constexpr std::size_t kMostGroups = 6;

bool has_uneven_form(OperationKind kind) {
  return kind == OperationKind::kAllGather ||
         kind == OperationKind::kReduceScatter ||
         kind == OperationKind::kAllToAll;
}

std::string_view name_of(Step::What what) {
  switch (what) {
    case Step::What::kCollective:
      return "collective";
    case Step::What::kMessages:
      return "messages";
    case Step::What::kFromAnySource:
      return "messages from any source";
    case Step::What::kObjects:
      return "objects";
    case Step::What::kNewGroup:
      return "new group";
    case Step::What::kSplit:
      return "split";
    case Step::What::kDropGroup:
      return "end of group";
    case Step::What::kWait:
      return "waits";
  }
  return "";
}

}  // namespace

std::string describe(const Step& step) {
  std::string text = fmt::format("step {}: {} in group {}", step.index,
                                 name_of(step.what), step.group);
  if (step.what == Step::What::kCollective)
    text +=
        fmt::format(", {}{} {} {}, root {}, {} elements{}", name_of(step.kind),
                    step.division == Division::kPerRank ? "_v" : "",
                    name_of(step.reduction), name_of(step.type), step.root,
                    fmt::join(step.counts, " + "),
                    step.own == Step::Own::kInPlace ? ", in place" : "");
  for (const Step::Envelope& envelope : step.envelopes)
    text += fmt::format(", {} to {} tag {}: {}", envelope.from, envelope.to,
                        envelope.tag, envelope.count);
  return text + (step.finish == Step::Finish::kLater ? ", not waited for" : "");
}

RandomProgram::RandomProgram(std::uint64_t seed, int ranks) : random_(seed) {
  std::vector<int>& all = members_[0];
  all.resize(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
}

Step RandomProgram::next() {
  Step step{.what = any_kind_of_step(), .index = steps_++};
  step.seed = random_();
  step.group = any_group();
  step.type = kAllDataTypes[below(kAllDataTypes.size())];
  if (!one_in(3)) step.finish = Step::Finish::kLater;
  switch (step.what) {
    case Step::What::kCollective:
      fill_collective(step);
      break;
    case Step::What::kMessages:
      fill_envelopes(step);
      break;
    case Step::What::kFromAnySource:
      fill_envelopes_to_one(step);
      break;
    case Step::What::kNewGroup:
      fill_new_group(step);
      break;
    case Step::What::kSplit:
      fill_split(step);
      break;
    case Step::What::kDropGroup:
      if (step.group == 0)
        step.what = Step::What::kWait;
      else
        members_.erase(step.group);
      break;
    case Step::What::kObjects:
      step.root = int_below(members(step.group).size());
      break;
    case Step::What::kWait:
      break;
  }
  return step;
}

Step::What RandomProgram::any_kind_of_step() {
  const std::uint64_t choice = below(100);
  if (choice < 60) return Step::What::kCollective;
  if (choice < 74) return Step::What::kMessages;
  if (choice < 78) return Step::What::kFromAnySource;
  if (choice < 82) return Step::What::kObjects;
  if (choice < 92) return Step::What::kWait;
  if (members_.size() >= kMostGroups) return Step::What::kDropGroup;
  if (choice < 96) return Step::What::kNewGroup;
  return choice < 98 ? Step::What::kSplit : Step::What::kDropGroup;
}

int RandomProgram::any_group() {
  auto group = members_.begin();
  std::advance(group, below(members_.size()));
  return group->first;
}

// Mostly sizes that fit into a message's envelope, sometimes larger ones that
// are split.
std::int64_t RandomProgram::any_count() {
  constexpr std::uint64_t kBounds[] = {2, 16, 16, 300, 300, 5'000, 40'000};
  const std::uint64_t bound =
      one_in(300) ? 300'000 : kBounds[below(std::size(kBounds))];
  return static_cast<std::int64_t>(below(bound));
}

void RandomProgram::fill_collective(Step& step) {
  step.kind = kAllCollectives[below(kAllCollectives.size())];
  do {
    step.reduction = kAllReductions[below(kAllReductions.size())];
  } while (!is_defined(step.reduction, step.type));
  step.root = int_below(members(step.group).size());
  if (has_uneven_form(step.kind) && one_in(3))
    step.division = Division::kPerRank;
  else if (one_in(3))
    step.own = Step::Own::kInPlace;
  const std::uint64_t buffers =
      step.division == Division::kEven && one_in(3) ? 1 + below(5) : 1;
  for (std::uint64_t i = 0; i < buffers; ++i)
    step.counts.push_back(any_count());
}

void RandomProgram::fill_envelopes(Step& step) {
  const std::size_t size = members(step.group).size();
  if (size < 2) return;
  const std::uint64_t envelopes = 1 + below(6);
  for (std::uint64_t i = 0; i < envelopes; ++i) {
    const int from = int_below(size);
    const int distance = 1 + int_below(size - 1);
    step.envelopes.push_back({.from = from,
                              .to = (from + distance) % static_cast<int>(size),
                              .tag = int_below(3),
                              .count = any_count()});
  }
}

// All ranks except one send that rank a message of one size. The tag is unique
// to the step: a fast rank's next message must not match a slow rank's receive.
void RandomProgram::fill_envelopes_to_one(Step& step) {
  const auto size = static_cast<int>(members(step.group).size());
  const int to = int_below(members(step.group).size());
  const int tag = 100 + static_cast<int>(step.index);
  const std::int64_t count = any_count();
  step.finish = Step::Finish::kAtOnce;
  for (int from = 0; from < size; ++from)
    if (from != to)
      step.envelopes.push_back(
          {.from = from, .to = to, .tag = tag, .count = count});
}

void RandomProgram::fill_new_group(Step& step) {
  step.ranks.resize(members(step.group).size());
  std::iota(step.ranks.begin(), step.ranks.end(), 0);
  std::ranges::shuffle(step.ranks, random_);
  step.ranks.resize(1 + below(step.ranks.size()));
  step.made = {groups_made_++};
  std::vector<int> members_of_new;
  for (const int rank : step.ranks)
    members_of_new.push_back(
        members(step.group)[static_cast<std::size_t>(rank)]);
  members_[step.made[0]] = std::move(members_of_new);
}

void RandomProgram::fill_split(Step& step) {
  constexpr int kColors = 3;
  const std::vector<int> parents = members(step.group);
  for (std::size_t i = 0; i < parents.size(); ++i)
    step.colors.push_back(
        {.color = int_below(kColors + 1) - 1, .key = int_below(4)});
  for (int color = 0; color < kColors; ++color) {
    std::vector<std::size_t> ranks;
    for (std::size_t i = 0; i < parents.size(); ++i)
      if (step.colors[i].color == color) ranks.push_back(i);
    std::ranges::stable_sort(ranks, {},
                             [&](std::size_t i) { return step.colors[i].key; });
    step.made.push_back(groups_made_++);
    if (ranks.empty()) continue;
    for (const std::size_t i : ranks)
      members_[step.made.back()].push_back(parents[i]);
  }
}

}  // namespace lockstep
