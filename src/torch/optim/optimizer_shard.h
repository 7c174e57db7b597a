// One rank's share of an optimizer: the pieces of parameters that the rank
// updates, and their state.
//
// It knows only the number of the other ranks: the caller reduces gradients and
// sends updated pieces to the other ranks. ZeroRedundancyOptimizer calls it
// after all gradients were averaged; an operation that reduces and updates in
// one pass would call update() for each range as soon as it is reduced. A step
// is
//
//     shard.begin_step(groups, scale);
//     for each of its pieces that has a gradient:
//       shard.begin_piece(piece);
//       shard.update(piece, 0, gradient);   // once, or a range at a time
//
// Threads: single-threaded, except update() between one begin_step() and the
//          next: any thread may update ranges that do not overlap,
//          concurrently.
// Errors:  InvalidArgument for parameters and options that the kernels do not
//          support, and for parameters that add_parameters() did not get.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/planning/shard_plan.h"
#include "src/torch/optim/update_state.h"

namespace lockstep {

class OptimizerShard {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  OptimizerShard(const Groups& groups, int ranks, int rank);

  const ShardPlan& plan() const { return plan_; }
  // The parameters by the plan's indices.
  std::span<const OptimizedParameter> parameters() const { return parameters_; }
  std::span<const ShardPlan::Piece> pieces() const {
    return plan_.ranks[static_cast<std::size_t>(rank_)];
  }
  const at::Tensor& parameter_of(std::size_t piece) const {
    return parameters_[pieces()[piece].parameter].tensor;
  }

  // Adds the parameters of groups that were appended to the constructor's; each
  // rank gets a share of them. Existing pieces keep their numbers and state.
  // InvalidArgument, without any change, for what the constructor refuses and
  // where earlier groups have changed.
  void add_parameters(const Groups& groups);

  // Reads learning rates and other options from `groups`, which must have this
  // shard's parameters. Every gradient is multiplied by `gradient_scale`.
  void begin_step(const Groups& groups, double gradient_scale);

  // Counts the step for a piece, and creates its state if missing.
  void begin_piece(std::size_t piece);

  // Updates the piece's elements from its `offset`-th on, one per element of
  // `gradient`, which has the parameter's type. Autograd does not notice it.
  void update(std::size_t piece, std::size_t offset,
              std::span<const std::byte> gradient) const;

  // Updates whole pieces of parameters on a GPU, each with its parameter's
  // gradient, which has the parameter's layout.
  struct PieceGradient {
    std::size_t piece;
    at::Tensor gradient;
  };
  void update_on_devices(std::span<const PieceGradient> gradients) const;

  // The piece's elements of its parameter, or of a tensor with the same layout:
  // a flat view.
  static at::Tensor part_of(const at::Tensor& dense,
                            const ShardPlan::Piece& piece);

  // The state of each piece: flat tensors, in order of the parameter's memory.
  std::span<const UpdateState> states() const { return states_; }
  void set_state(std::size_t piece, UpdateState state);
  std::size_t state_bytes() const;

 private:
  std::vector<OptimizedParameter> parameters_;
  int rank_;
  ShardPlan plan_;
  std::vector<UpdateState> states_;  // by piece
  // Of the current step.
  std::vector<UpdateRule> rules_;  // by group
  double gradient_scale_ = 1;
};

class ZeroRedundancyOptimizer;

// Replaces the state of this rank's pieces, of which `states` has one each: for
// checkpoints that ranks read in parts, without the whole state on any rank.
void load_shard(ZeroRedundancyOptimizer& optimizer,
                std::vector<UpdateState> states);

}  // namespace lockstep
