#include "src/torch/optim/optimizer_shares.h"

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/group/group_core.h"
#include "src/torch/optim/gradient_norm.h"
#include "src/torch/optim/shard_hook.h"
#include "src/torch/tensor/module_tensors.h"

namespace lockstep {
namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

std::string name_of(const OptimizedParameter& parameter) {
  return c10::str("parameter ", parameter.index, " of group ", parameter.group);
}

// One line per parameter. `shared` are two in the same memory, if any.
std::string describe(std::span<const OptimizedParameter> parameters,
                     const std::optional<ParameterPair>& shared) {
  std::string text;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    text += c10::str(
        name_of(parameters[i]), ": ", tensor.scalar_type(), " ", tensor.sizes(),
        " strides ",
        tensor.layout() == at::kStrided ? tensor.strides() : at::IntArrayRef());
    if (shared && shared->second == i)
      text += ", in the memory of " + name_of(parameters[shared->first]);
    text += "\n";
  }
  return text;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The first line of `a` that differs from `b`'s line at this position.
std::string_view first_difference(std::string_view a, std::string_view b) {
  while (!a.empty()) {
    const auto line = a.substr(0, a.find('\n') + 1);
    if (!b.starts_with(line)) return line.substr(0, line.size() - 1);
    a.remove_prefix(line.size());
    b.remove_prefix(line.size());
  }
  return "no more parameters";
}

// Throws on every rank unless all have the same parameters, at least one.
void check_same_parameters(ProcessGroup& group, const Groups& groups) {
  const auto parameters = parameters_of(groups);
  const auto shared = sharing_memory(parameters);
  const std::string own = describe(parameters, shared);
  const auto texts =
      all_gather_bytes(group, std::as_bytes(std::span(own)),
                       {.label = "parameters of a sharded optimizer"});
  const std::string_view first = text_of(texts[0]);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const std::string_view other = text_of(texts[rank]);
    if (other == first) continue;
    throw Mismatch(c10::str(
        "the ranks of group \"", group.name(),
        "\" made ZeroRedundancyOptimizers of different parameters (seen on "
        "rank ",
        group.rank(), " of ", group.size(),
        ")\n  rank 0:  ", first_difference(first, other), "\n  rank ", rank,
        ":  ", first_difference(other, first),
        "\n  likely:  the models differ between ranks, or ranks pass "
        "different parameters"
        "\n  next:    pass the same parameters in the same order on every "
        "rank"));
  }
  if (first.empty())
    throw InvalidArgument(
        "ZeroRedundancyOptimizer: the list of parameters is empty"
        "\n  next:    pass model.parameters()");
  if (shared)
    throw InvalidArgument(
        "ZeroRedundancyOptimizer: " + name_of(parameters[shared->second]) +
        " lies in the memory of " + name_of(parameters[shared->first]) +
        ", so that two ranks may update the same elements"
        "\n  next:    pass one of the two, or give each memory of its own: "
        "tensor.detach().clone()");
}

std::unique_ptr<OptimizerShard> make_shard(ProcessGroup& group,
                                           const Groups& groups) {
  has_repeated_parameters(groups);  // a line of the log
  check_same_parameters(group, groups);
  return std::make_unique<OptimizerShard>(groups, group.size(), group.rank());
}

// The memory of the pieces that one rank has updated, one list per data type.
std::vector<std::vector<Buffer>> buffers_of(const OptimizerShard& shard,
                                            std::size_t rank,
                                            const std::vector<char>& settled) {
  std::vector<std::vector<Buffer>> lists;
  for (const auto& piece : shard.plan().ranks[rank]) {
    if (settled[piece.parameter] != 0) continue;
    const at::Tensor& tensor = shard.parameters()[piece.parameter].tensor;
    add_by_type(lists, view(OptimizerShard::part_of(tensor, piece)));
  }
  return lists;
}

// A piece's part of `gradient`, which has the parameter's layout.
std::span<const std::byte> bytes_of(const at::Tensor& gradient,
                                    const ShardPlan::Piece& piece) {
  return {bytes_at(gradient, piece.begin),
          piece.elements * static_cast<std::size_t>(gradient.element_size())};
}

// The norm over all ranks' tensors, the same on each rank.
double norm_over_ranks(ProcessGroup& group, at::TensorList own,
                       double norm_type) {
  const CallOptions options{.label = "norm of the gradients"};
  if (norm_type == 2) {
    std::vector<double> squares{sum_of_squares(own)};
    group.all_reduce(view(squares), ReduceOp::kSum, options).wait();
    return std::sqrt(squares[0]);
  }
  std::vector<double> norm{norm_of(own, norm_type)};
  std::vector<double> norms(static_cast<std::size_t>(group.size()));
  group.all_gather(view(norm), view(norms), options).wait();
  return norm_of_norms(norms, norm_type);
}

NamedTensorList named_tensors(const OptimizerShard& shard) {
  NamedTensorList named;
  for (const OptimizedParameter& parameter : shard.parameters())
    named.emplace_back(name_of(parameter), parameter.tensor);
  return named;
}

bool is_on_cpu(const OptimizedParameter& parameter) {
  return parameter.tensor.is_cpu();
}

}  // namespace

ZeroRedundancyOptimizer::Shares::Shares(
    const Groups& groups, const ZeroRedundancyOptimizerOptions& options)
    : group_(options.group ? options.group : default_group()),
      shard_(make_shard(*group_, groups)),
      tensors_(tensors_of(shard_->parameters())),
      watch_(options.compare_replicas_every, group_,
             [shard = shard_.get()] { return named_tensors(*shard); }) {
  if (options.averages_gradients) prepare_averages();
}

// For all parameters of the shard.
void ZeroRedundancyOptimizer::Shares::prepare_averages() {
  average_ = std::make_unique<GradientAverage>(group_, shard_->parameters());
  one_pass_ = nullptr;
  if (group_->core().reduces_in_place() &&
      std::ranges::all_of(shard_->parameters(), is_on_cpu))
    one_pass_ = std::make_unique<FusedShardedStep>(group_, *shard_);
}

void ZeroRedundancyOptimizer::Shares::check_accepts_groups() const {
  if (gave_hook_)
    throw InvalidArgument(
        "ZeroRedundancyOptimizer: its gradient_hook() reduces only the "
        "gradients of its earlier parameters, not those of a new group"
        "\n  next:    make a new optimizer and a new DistributedDataParallel");
}

void ZeroRedundancyOptimizer::Shares::add_parameters(const Groups& groups) {
  has_repeated_parameters(groups);  // a line of the log
  check_same_parameters(*group_, groups);
  shard_->add_parameters(groups);
}

void ZeroRedundancyOptimizer::Shares::follow_parameters() {
  tensors_ = tensors_of(shard_->parameters());
  whole_.reset();
  if (average_) prepare_averages();
}

std::shared_ptr<CommHook> ZeroRedundancyOptimizer::Shares::gradient_hook() {
  if (average_)
    throw InvalidArgument(
        "a sharded optimizer that averages gradients in step() has no hook to "
        "reduce them in backward()"
        "\n  next:    leave averages_gradients at false, and average_gradients "
        "of DistributedDataParallel at true");
  gave_hook_ = true;
  return std::make_shared<ShardHook>(group_, shard_->parameters(),
                                     shard_->plan());
}

void ZeroRedundancyOptimizer::Shares::step(const Groups& groups) {
  const Settled settled = begin_step(groups);
  update_own_pieces(settled);
  exchange_pieces(settled);
  // The kernels and the peers write without autograd's knowledge.
  for (const auto& parameter : shard_->parameters())
    parameter.tensor.unsafeGetTensorImpl()->bump_version();
  watch_.compare(*group_);  // behind all that may refuse a step
}

// Checks all gradients, so that every rank throws and no rank waits for
// another.
void ZeroRedundancyOptimizer::Shares::check_gradients() const {
  for (const auto& parameter : shard_->parameters()) check_gradient(parameter);
}

// Local gradients may have changed on one rank only.
void ZeroRedundancyOptimizer::Shares::agree_on_factor() {
  if (!average_ || group_->size() == 1 || !factor_.is_asked()) return;
  std::array first{static_cast<std::int64_t>(factor_.first_call(tensors_))};
  group_
      ->all_reduce(view(std::span<std::int64_t>(first)), ReduceOp::kMax,
                   {.label = "which factors of gradients count"})
      .wait();
  factor_.forget_before(static_cast<std::uint64_t>(first[0]));
}

// Returns the settled parameters; the others have averages in .grad and are
// updated piece by piece.
ZeroRedundancyOptimizer::Shares::Settled
ZeroRedundancyOptimizer::Shares::begin_step(const Groups& groups) {
  const bool averages = average_ && !average_->averaged();
  if (!averages) check_gradients();
  agree_on_factor();
  const double factor =
      factor_.take(tensors_);  // before averaging changes gradients
  Settled settled =
      averages ? average_->missing_everywhere() : without_gradients();
  shard_->begin_step(groups, factor);
  whole_.reset();
  begin_pieces(settled);
  if (averages && one_pass_) settled = one_pass_->run(std::move(settled));
  if (averages) average_->average(settled);
  return settled;
}

// Parameters without gradients keep their values.
ZeroRedundancyOptimizer::Shares::Settled
ZeroRedundancyOptimizer::Shares::without_gradients() const {
  Settled settled;
  for (const auto& parameter : shard_->parameters())
    settled.push_back(parameter.tensor.grad().defined() ? 0 : 1);
  return settled;
}

void ZeroRedundancyOptimizer::Shares::begin_pieces(const Settled& settled) {
  for (std::size_t i = 0; i < shard_->pieces().size(); ++i)
    if (settled[shard_->pieces()[i].parameter] == 0) shard_->begin_piece(i);
}

void ZeroRedundancyOptimizer::Shares::update_own_pieces(
    const Settled& settled) {
  std::vector<OptimizerShard::PieceGradient> on_devices;
  for (std::size_t i = 0; i < shard_->pieces().size(); ++i) {
    const ShardPlan::Piece& piece = shard_->pieces()[i];
    if (settled[piece.parameter] != 0) continue;
    const OptimizedParameter& parameter = shard_->parameters()[piece.parameter];
    const at::Tensor gradient = gradient_of(parameter);
    if (is_on_cpu(parameter))
      shard_->update(i, 0, bytes_of(gradient, piece));
    else
      on_devices.push_back({i, gradient});
  }
  shard_->update_on_devices(on_devices);
}

void ZeroRedundancyOptimizer::Shares::exchange_pieces(const Settled& settled) {
  const auto size = static_cast<std::size_t>(group_->size());
  if (size == 1) return;
  std::vector<Work> works;
  for (std::size_t rank = 0; rank < size; ++rank) {
    const std::string label =
        "updated parameters of rank " + std::to_string(rank);
    for (const auto& buffers : buffers_of(*shard_, rank, settled))
      works.push_back(
          group_->broadcast(buffers, static_cast<int>(rank), {.label = label}));
  }
  wait_for_all(works);
}

double ZeroRedundancyOptimizer::Shares::clip_grad_norm(double max_norm,
                                                       double norm_type) {
  const c10::AutoGradMode no_grad(false);
  clip_coefficient(0,
                   max_norm);  // refuses an invalid norm before any rank waits
  check_norm_type(norm_type);
  agree_on_factor();
  const double scale = factor_.scaled_by(tensors_);
  if (average_ && !average_->averaged()) average_->average_all();
  check_gradients();
  std::vector<at::Tensor> own;
  for (const ShardPlan::Piece& piece : shard_->pieces()) {
    const at::Tensor gradient =
        gradient_of(shard_->parameters()[piece.parameter]);
    if (gradient.defined())
      own.push_back(OptimizerShard::part_of(gradient, piece));
  }
  const double norm = scale * norm_over_ranks(*group_, own, norm_type);
  factor_.clip(clip_coefficient(norm, max_norm), tensors_);
  return norm;
}

}  // namespace lockstep
