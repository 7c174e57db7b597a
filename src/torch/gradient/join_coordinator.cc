#include "src/torch/gradient/join_coordinator.h"

#include <atomic>
#include <string>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Answers = std::vector<std::uint8_t>;  // by rank

std::string phrase_for(Activity activity) {
  switch (activity) {
    case Activity::kOutOfData:
      return "out of data";
    case Activity::kForward:
      return "in a forward pass";
    case Activity::kBackward:
      return "in a backward pass";
  }
  return {};
}

std::string ranks_with(const Answers& answers, Activity activity) {
  std::string list;
  for (std::size_t rank = 0; rank < answers.size(); ++rank)
    if (answers[rank] == static_cast<std::uint8_t>(activity))
      list += (list.empty() ? "" : ", ") + std::to_string(rank);
  return list;
}

std::string lines_of(const Answers& answers) {
  std::string text;
  for (const Activity activity :
       {Activity::kOutOfData, Activity::kForward, Activity::kBackward})
    if (const std::string list = ranks_with(answers, activity); !list.empty())
      text += "\n  ranks:   " + list + " " + phrase_for(activity);
  return text;
}

// InvalidArgument or Mismatch unless those that have data do the same.
Activity common_activity(const ProcessGroup& group, const Answers& answers) {
  Activity common = Activity::kOutOfData;
  for (const std::uint8_t answer : answers) {
    const auto activity = static_cast<Activity>(answer);
    if (activity == Activity::kOutOfData || activity == common) continue;
    if (common != Activity::kOutOfData)
      throw Mismatch(
          "the ranks of group \"" + group.name() +
          "\" are not at the same point of their steps" + lines_of(answers) +
          "\n  likely:  the loop is not the same on every rank: another "
          "number of passes, or train() and eval()\n"
          "  next:    do the same in each step everywhere; only the number of "
          "steps may differ within join()");
    common = activity;
  }
  return common;
}

// Another for each scope of a group, and the same on all of its ranks.
std::int64_t agreed_number(ProcessGroup& group) {
  static std::atomic<std::int64_t> last{0};
  std::vector<std::int64_t> number{++last};
  group.all_reduce(view(number), ReduceOp::kMax, {.label = "scope of join"})
      .wait();
  return number[0];
}

}  // namespace

Participation full_participation(const ProcessGroup& group, Activity activity) {
  return {.activity = activity,
          .active = group.size(),
          .root = 0,
          .divisor = group.size()};
}

JoinCoordinator::JoinCoordinator(std::shared_ptr<ProcessGroup> group,
                                 const JoinCoordinatorOptions& options)
    : group_(std::move(group)),
      options_(options),
      number_(agreed_number(*group_)),
      last_(full_participation(*group_, Activity::kOutOfData)) {
  last_.root = group_->size() - 1;
}

// By rank. Mismatch where some rank answers in another scope.
std::vector<std::uint8_t> JoinCoordinator::answers_to(Activity mine) {
  const std::vector<std::int64_t> answer{static_cast<std::int64_t>(mine),
                                         number_};
  std::vector<std::int64_t> told(answer.size() *
                                 static_cast<std::size_t>(group_->size()));
  group_
      ->all_gather(view(answer), view(told),
                   {.label = "which ranks have joined"})
      .wait();
  Answers answers;
  for (std::size_t i = 0; i < told.size(); i += answer.size()) {
    answers.push_back(static_cast<std::uint8_t>(told[i]));
    if (told[i + 1] == told[1]) continue;
    throw Mismatch(
        "the ranks of group \"" + group_->name() +
        "\" are in different scopes of join(): rank " +
        std::to_string(i / answer.size()) +
        " is in another than rank 0\n"
        "  likely:  the program joins two models in one scope of its own, so "
        "that a rank without data waits in one model's while the others train "
        "the other model\n"
        "  next:    make the models parts of one module, and wrap and join "
        "that");
  }
  return answers;
}

Participation JoinCoordinator::announce(Activity mine) {
  const Answers answers = answers_to(mine);

  Participation roll{.activity = common_activity(*group_, answers)};
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (answers[rank] == static_cast<std::uint8_t>(Activity::kOutOfData))
      continue;
    ++roll.active;
    roll.root = static_cast<int>(rank);
  }
  roll.divisor =
      options_.divide_by_initial_world_size ? group_->size() : roll.active;
  if (roll.active > 0 && roll.active < group_->size() &&
      options_.throw_on_early_termination)
    throw InvalidArgument(
        "some ranks of group \"" + group_->name() +
        "\" are out of data before the others" + lines_of(answers) +
        "\n  likely:  the ranks' shares of the data differ in length, and "
        "throw_on_early_termination is set\n"
        "  next:    give every rank as many batches (DistributedSampler does), "
        "or leave throw_on_early_termination off");
  if (roll.active > 0) last_ = roll;
  return roll;
}

}  // namespace lockstep
