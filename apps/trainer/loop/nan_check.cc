#include "apps/trainer/loop/nan_check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/evaluate/evaluation.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/checkpoint/optimizer_tensors.h"

namespace lockstep {
namespace {

std::string text_of(double number) {
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

std::int64_t reduced(ProcessGroup& group, std::int64_t own, ReduceOp op) {
  std::vector<std::int64_t> number{own};
  group.all_reduce(view(number), op, {.label = "whether the run is finite"})
      .wait();
  return number[0];
}

// Waits for the device once.
std::vector<bool> finite(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> answers;
  for (const at::Tensor& tensor : tensors)
    answers.push_back(at::isfinite(tensor).all().to(tensors.front().device()));
  const at::Tensor all = at::stack(answers).cpu();
  const auto answer = all.accessor<bool, 1>();
  std::vector<bool> found;
  for (std::int64_t i = 0; i < answer.size(0); ++i) found.push_back(answer[i]);
  return found;
}

// For an image of numbers as normalised pixels have them.
at::Tensor outputs_of(Classifier& model, const ImageShape& images) {
  const at::NoGradGuard no_grad;
  const EvaluationMode mode(model);
  const auto [channels, height, width] = images;
  return model.forward(at::arange(channels * height * width)
                           .to(at::kFloat)
                           .sin()
                           .reshape({1, channels, height, width})
                           .to(model.parameters().front().device()));
}

// The numbers of the state that this rank holds: with a sharded optimizer, of
// its pieces.
std::vector<at::Tensor> state_in(const torch::optim::Optimizer& optimizer,
                                 const Classifier& model) {
  std::vector<at::Tensor> state;
  if (const auto* const sharded =
          dynamic_cast<const ZeroRedundancyOptimizer*>(&optimizer))
    for (const StatePiece& piece : shard_of(*sharded, model).pieces)
      state.push_back(piece.elements);
  else
    for (const auto& [name, tensor] : tensors_of(optimizer, model).tensors)
      state.push_back(tensor);
  std::erase_if(state, [](const at::Tensor& tensor) {
    return !tensor.is_floating_point();
  });
  return state;
}

}  // namespace

std::string first_not_finite(Classifier& model, const ImageShape& images,
                             ProcessGroup& group,
                             const torch::optim::Optimizer* optimizer) {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  for (const auto& list : {model.named_parameters(), model.named_buffers()})
    for (const auto& item : list) {
      if (!item.value().is_floating_point()) continue;
      names.push_back(item.key());
      tensors.push_back(item.value().detach());
    }
  tensors.push_back(outputs_of(model, images));
  if (optimizer != nullptr)
    std::ranges::move(state_in(*optimizer, model), std::back_inserter(tensors));
  const std::vector<bool> are_finite = finite(tensors);
  const auto first = std::ranges::find(are_finite, false);
  // Ranks hold different numbers of tensors of the optimizer.
  const std::int64_t outputs = std::ssize(names);
  const std::int64_t own =
      first == are_finite.end()
          ? outputs + 2
          : std::min(std::distance(are_finite.begin(), first), outputs + 1);
  const std::int64_t found = reduced(group, own, ReduceOp::kMin);
  if (found > outputs + 1) return {};
  if (found > outputs) return "the optimizer's state";
  if (found == outputs) return "what the model computes";
  return "\"" + names[static_cast<std::size_t>(found)] + "\" of the model";
}

NanCheck::NanCheck(const TrainerOptions& options, const ImageShape& images,
                   const TrainedReplica& replica,
                   std::function<std::string()> newest_checkpoint)
    : options_(options),
      on_nan_(parse_on_nan(options.on_nan)),
      images_(images),
      model_(replica.model.module()),
      optimizer_(*replica.optimizer.optimizer),
      group_(replica.group),
      newest_checkpoint_(std::move(newest_checkpoint)) {}

void NanCheck::add(const FinishedStep& step) {
  last_ = step.number;
  last_is_bad_ = !step.skipped && !std::isfinite(step.metrics.loss);
  skipped_in_row_ = step.skipped ? skipped_in_row_ + 1 : 0;
  if (last_is_bad_ && on_nan_ == OnNan::kStop)
    first_bad_ = std::min(first_bad_, step.number);
}

void NanCheck::check_losses() {
  if (on_nan_ == OnNan::kIgnore) return;
  if (on_nan_ == OnNan::kStop)
    if (const auto first = reduced(*group_, first_bad_, ReduceOp::kMin);
        first != kNone)
      stop("the loss of " + position_of(first) + " is not finite");
  if (skipped_in_row_ >= kMostSkipped)
    stop("the last " + std::to_string(skipped_in_row_) + " steps, up to " +
         position_of(last_) +
         ", were skipped, because their gradients were not finite");
}

bool NanCheck::check_state() {
  check_losses();
  const std::string name =
      first_not_finite(*model_, images_, *group_, &optimizer_);
  if (!name.empty() && on_nan_ != OnNan::kIgnore)
    stop(name + " is not finite after " + position_of(last_));
  return reduced(*group_, last_is_bad_ ? 1 : 0, ReduceOp::kMax) == 0 &&
         name.empty();
}

std::string NanCheck::position_of(std::int64_t number) const {
  return "step " + std::to_string(number + 1) + " (epoch " +
         std::to_string(number / steps_ + 1) + ", step " +
         std::to_string(number % steps_ + 1) + " of " + std::to_string(steps_) +
         ")";
}

std::string NanCheck::way_back(const std::string& checkpoint) const {
  const auto& folder = options_.checkpoint_dir;
  if (checkpoint.empty())
    return folder.empty() ? " (--checkpoint-dir keeps the states before)" : "";
  const bool is_in_folder =
      !folder.empty() && std::filesystem::path(checkpoint).parent_path() ==
                             (folder / "name").parent_path();
  return is_in_folder
             ? "; --resume auto goes on from the last finite checkpoint, \"" +
                   checkpoint + "\""
             : "; --resume \"" + checkpoint +
                   "\" goes on from the last finite checkpoint";
}

void NanCheck::stop(const std::string& problem) const {
  std::string next = "train with a lower --lr, or with --clip-norm", also;
  try {
    next += way_back(newest_checkpoint_());
  } catch (const Error& error) {  // of the checkpoint in progress
    also = "\n  also:    " + std::string(error.what());
  }
  if (on_nan_ == OnNan::kStop)
    next += "; --on-nan skip leaves out steps whose gradients are not finite";
  throw Error("training has diverged: " + problem +
              "\n  likely:  the learning rate, " +
              text_of(learning_rate_of(options_)) +
              ", is too high, or the data hold numbers that are not finite"
              "\n  next:    " +
              next + also);
}

}  // namespace lockstep
