// The causes that ConsistencyReport names for wrong rows.
#include <algorithm>

#include "lockstep/torch/consistency.h"
#include "src/base/report_text.h"
#include "src/torch/compare/replica_difference.h"
#include "src/torch/verify/consistency_table.h"
#include "src/torch/verify/gradient_fingerprints.h"

namespace lockstep {

// The row added last is the first wrong one; later ones are consequences.
void ConsistencyReport::accuse(const std::string& where,
                               const std::string& likely,
                               const std::string& next) {
  if (verdict_) return;
  verdict_ = {.step = step_,
              .what = rows_.back().what,
              .where = where,
              .likely = likely,
              .next = next};
}

void ConsistencyReport::accuse_of_equal(const std::string& where,
                                        bool own_are_finite,
                                        const std::string& likely,
                                        const std::string& next) {
  if (ranks_that(!own_are_finite).empty()) return accuse(where, likely, next);
  accuse(where + ", which are not finite",
         "training has diverged: weights or the loss became infinite or NaN",
         "lower the learning rate, or let it rise over the first steps");
}

std::vector<int> ConsistencyReport::ranks_that(bool own) {
  const auto flags = gather(*group_, Fingerprint{.low = own, .high = 0});
  std::vector<int> ranks;
  for (int rank = 0; rank < group_->size(); ++rank)
    if (flags[static_cast<std::size_t>(rank)].low != 0) ranks.push_back(rank);
  return ranks;
}

// Data, outputs and loss; once per step.
void ConsistencyReport::compare_pass() {
  if (pass_compared_) return;
  pass_compared_ = true;
  const auto told = [](const std::vector<Fingerprint>& by_rank) {
    return std::ranges::any_of(
        by_rank, [](const Fingerprint& one) { return one != Fingerprint(); });
  };
  const auto data = gather(*group_, own_->data);
  if (told(data) && !add("data", options_.data, data)) {
    if (options_.data == Expected::kDifferent)
      accuse(equal_ranks(data) + " have read the same samples",
             "no DistributedSampler is used, it got the same rank on these "
             "ranks, or they draw samples with the same seed",
             "give each rank its own part of the data, by its rank");
    else
      accuse("ranks have read different samples",
             "ranks that share their data read it in different orders",
             "give them the same seed and the same sampler");
  }
  const Expected expected = options_.data == Expected::kDifferent
                                ? Expected::kDifferent
                                : Expected::kEither;
  const auto outputs = gather(*group_, own_->outputs);
  bool outputs_differ = false;
  if (told(outputs)) {
    outputs_differ = add("outputs", expected, outputs);
    if (!outputs_differ)
      accuse_of_equal(
          equal_ranks(outputs) + " have computed the same outputs",
          own_->outputs_are_finite,
          "the model does not use its input, or data() got another tensor",
          "check the arguments of forward()");
  }
  const auto loss = gather(*group_, own_->loss);
  if (!told(loss) || add("loss", expected, loss)) return;
  if (outputs_differ) {  // two numbers may be equal by chance
    rows_.back().must = Expected::kEither;
    rows_.back().right = true;
    return;
  }
  accuse_of_equal(equal_ranks(loss) + " have computed the same loss",
                  own_->loss_is_finite, "the loss does not depend on the data",
                  "check what the loss is computed from");
}

void ConsistencyReport::explain_gradients(const ReplicaDifference& difference) {
  const auto unreduced = [&](std::size_t i) {
    return fingerprint_of(trained_[i].second.grad()) ==
           own_->gradients->unreduced()[i];
  };
  bool all_unreduced = true;
  bool this_unreduced = false;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    all_unreduced = all_unreduced && unreduced(i);
    if (trained_[i].first == difference.tensor) this_unreduced = unreduced(i);
  }
  const auto ranks = static_cast<std::size_t>(group_->size());
  const bool none_anywhere = ranks_that(all_unreduced).size() == ranks;
  const bool this_nowhere = ranks_that(this_unreduced).size() == ranks;
  if (none_anywhere)
    accuse(describe(difference),
           "no gradient was reduced: the module is not wrapped, forward() of "
           "the module was called and not of its wrapper, the last pass ran "
           "within no_sync(), or an optimizer averages them later",
           "call the wrapper outside no_sync(); where an optimizer averages "
           "gradients, set .reduced_gradients = Expected::kEither");
  else if (this_nowhere)
    accuse(describe(difference),
           "the gradient of " + difference.tensor +
               " was not reduced: its parameter is not part of the wrapped "
               "module, or was replaced afterwards",
           "wrap the whole module, after it is complete");
  else
    accuse(describe(difference),
           "gradients were changed after backward() on some ranks: scaled, "
           "clipped or zeroed; or ranks ran different numbers of passes; or a "
           "sharded optimizer's gradient_hook() gives each rank its share",
           "do the same to gradients on every rank; with that hook, set "
           ".reduced_gradients = Expected::kEither");
}

void ConsistencyReport::explain_weights(const ReplicaDifference& difference,
                                        const std::vector<int>& unchanged) {
  if (!weights_were_equal_)
    accuse(describe(difference), "they differed before this step",
           "look at the rows above");
  else if (!unchanged.empty() && std::ssize(unchanged) < group_->size())
    accuse(describe(difference),
           "the optimizer's step was skipped on " + name_ranks(unchanged) +
               ", where the weights did not change",
           "step on every rank, or on no rank");
  else
    accuse(describe(difference),
           "the optimizers are not the same on every rank: their options, "
           "learning rates or states; or gradients were changed between "
           "backward() and step()",
           "use the same options on all ranks, and load states on every rank");
}

}  // namespace lockstep
