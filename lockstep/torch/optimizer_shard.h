// One rank's share of an optimizer: the pieces of parameters that it updates,
// and their state.
//
// Knows nothing of other ranks but their number: who reduces a gradient, and
// who carries an updated piece to the other ranks, is the caller's business.
// ZeroRedundancyOptimizer calls it after gradients were averaged everywhere; an
// operation that reduces and updates in one pass would call update() for each
// range as soon as it is reduced. A step is
//
//     shard.begin_step(groups, scale);
//     for each of its pieces that has a gradient:
//       shard.begin_piece(piece);
//       shard.update(piece, 0, gradient);   // once, or a range at a time
//
// Threads: single-threaded, but for update() between one begin_step() and the
//          next: ranges that do not overlap may be updated at once, by any
//          thread.
// Errors:  InvalidArgument for parameters and options that the kernels do not
//          know, and for others than add_parameters() was told of.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/ddp/shard_plan.h"
#include "lockstep/torch/update_state.h"

namespace lockstep {

class OptimizerShard {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  OptimizerShard(const Groups& groups, int ranks, int rank);

  const ShardPlan& plan() const { return plan_; }
  // What the plan's indices mean.
  std::span<const OptimizedParameter> parameters() const { return parameters_; }
  std::span<const ShardPlan::Piece> pieces() const {
    return plan_.ranks[static_cast<std::size_t>(rank_)];
  }
  const at::Tensor& parameter_of(std::size_t piece) const {
    return parameters_[pieces()[piece].parameter].tensor;
  }

  // Takes in the parameters of groups that were added at the end of those that
  // this was made with, of which each rank gets a share; pieces that are there
  // keep their numbers and their state. InvalidArgument, and nothing has
  // changed, for what the constructor refuses and where others have changed.
  void add_parameters(const Groups& groups);

  // Takes learning rates and the like from `groups`, which have the parameters
  // that this has. Every gradient counts times `gradient_scale`.
  void begin_step(const Groups& groups, double gradient_scale);

  // Counts the step for a piece, and makes sure that it has state.
  void begin_piece(std::size_t piece);

  // Updates the piece's elements from its `offset`-th on: as many as `gradient`
  // has, which are of the parameter's type. Autograd is not told.
  void update(std::size_t piece, std::size_t offset,
              std::span<const std::byte> gradient) const;

  // Updates whole pieces of parameters on a GPU, each with its parameter's
  // gradient, which lies as that does.
  struct PieceGradient {
    std::size_t piece;
    at::Tensor gradient;
  };
  void update_on_devices(std::span<const PieceGradient> gradients) const;

  // A piece's elements of its parameter, or of what lies as that does: flat,
  // and the same memory.
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
  // Of the present step.
  std::vector<UpdateRule> rules_;  // by group
  double gradient_scale_ = 1;
};

}  // namespace lockstep
