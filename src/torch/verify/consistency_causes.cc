#include "src/torch/verify/consistency_causes.h"

#include <iterator>

#include "src/base/report_text.h"

namespace lockstep {

ConsistencyCause initial_weights_differ(const ReplicaDifference& difference) {
  return {describe(difference),
          "the module was not wrapped yet, or weights were loaded or changed "
          "on some ranks after it was",
          "wrap it in DistributedDataParallel, which copies rank 0's to all "
          "ranks, and load weights before that or on every rank; for a "
          "report that begins before, set .initial_weights = "
          "Expected::kEither"};
}

ConsistencyCause initial_buffers_differ(const ReplicaDifference& difference) {
  return {describe(difference),
          "buffers were set on some ranks after the module was wrapped",
          "set them before, or on every rank"};
}

ConsistencyCause wrapped_weights_differ(const ReplicaDifference& difference) {
  return {describe(difference),
          "the module was not wrapped before the first step, or weights were "
          "loaded or changed on some ranks after it was",
          "wrap it in DistributedDataParallel, which copies rank 0's to all "
          "ranks, and load weights before that or on every rank"};
}

ConsistencyCause same_samples(const std::string& ranks) {
  return {ranks + " have read the same samples",
          "no DistributedSampler is used, it got the same rank on these "
          "ranks, or they draw samples with the same seed",
          "give each rank its own part of the data, by its rank"};
}

ConsistencyCause same_outputs(const std::string& ranks) {
  return {ranks + " have computed the same outputs",
          "the model does not use its input, or data() got another tensor",
          "check the arguments of forward()"};
}

ConsistencyCause same_loss(const std::string& ranks) {
  return {ranks + " have computed the same loss",
          "the loss does not depend on the data",
          "check what the loss is computed from"};
}

ConsistencyCause same_gradients(const std::string& ranks) {
  return {ranks + " have computed the same gradients",
          "the loss does not depend on the data, or the same batch was passed "
          "twice",
          "check what the loss is computed from"};
}

ConsistencyCause same_reduced_gradients(const std::string& ranks) {
  return {ranks + " have the same gradients",
          "something averages them, but each rank should step on its own",
          "remove the averaging, or expect equal gradients"};
}

ConsistencyCause diverged(const ConsistencyCause& cause) {
  return {cause.where + ", which are not finite",
          "training has diverged: weights or the loss became infinite or NaN",
          "lower the learning rate, or let it rise over the first steps"};
}

ConsistencyCause other_samples() {
  return {"ranks have read different samples",
          "ranks that share their data read it in different orders",
          "give them the same seed and the same sampler"};
}

ConsistencyCause reduced_gradients_differ(const ReplicaDifference& difference,
                                          Unreduced unreduced) {
  const std::string where = describe(difference);
  switch (unreduced) {
    case Unreduced::kAll:
      return {where,
              "no gradient was reduced: the module is not wrapped, forward() "
              "of the module was called and not of its wrapper, the last pass "
              "ran within no_sync(), or an optimizer averages them later",
              "call the wrapper outside no_sync(); where an optimizer averages "
              "gradients, set .reduced_gradients = Expected::kEither"};
    case Unreduced::kThis:
      return {where,
              "the gradient of " + difference.tensor +
                  " was not reduced: its parameter is not part of the wrapped "
                  "module, or was replaced afterwards",
              "wrap the whole module, after it is complete"};
    case Unreduced::kNone:
      break;
  }
  return {where,
          "gradients were changed after backward() on some ranks: scaled, "
          "clipped or zeroed; or ranks ran different numbers of passes; or a "
          "sharded optimizer's gradient_hook() gives each rank its share",
          "do the same to gradients on every rank; with that hook, set "
          ".reduced_gradients = Expected::kEither"};
}

ConsistencyCause weights_differed_before(const ReplicaDifference& difference) {
  return {describe(difference), "they differed before this step",
          "look at the rows above"};
}

ConsistencyCause updated_weights_differ(const ReplicaDifference& difference,
                                        const std::vector<int>& unchanged,
                                        int ranks) {
  if (!unchanged.empty() && std::ssize(unchanged) < ranks)
    return {describe(difference),
            "the optimizer's step was skipped on " + name_ranks(unchanged) +
                ", where the weights did not change",
            "step on every rank, or on no rank"};
  return {describe(difference),
          "the optimizers are not the same on every rank: their options, "
          "learning rates or states; or gradients were changed between "
          "backward() and step()",
          "use the same options on all ranks, and load states on every rank"};
}

ConsistencyCause buffers_differ(const ReplicaDifference& difference) {
  return {describe(difference),
          "it was set on some ranks after the module was wrapped, and nothing "
          "broadcasts it: broadcast_buffers is false, or forward() of the "
          "module was called, not of its wrapper",
          "set it on every rank, or leave broadcast_buffers at true"};
}

}  // namespace lockstep
