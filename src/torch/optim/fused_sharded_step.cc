#include "src/torch/optim/fused_sharded_step.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "lockstep/torch/tensor_collectives.h"
#include "src/base/round_up.h"
#include "src/comm/group/group_core.h"
#include "src/comm/memory/heap.h"
#include "src/torch/tensor/heap_allocator.h"

namespace lockstep {
namespace {

// An operation on shared memory takes up to a thousand buffers: this many
// gradients, their parameters, and two blocks.
constexpr std::size_t kMostLarge = 500;

// Moves `parameter` and its values to memory of the group.
void move_to(const std::shared_ptr<std::byte>& memory, std::size_t offset,
             const at::Tensor& parameter) {
  const at::Tensor moved = at::from_blob(
      memory.get() + offset, parameter.sizes(), parameter.strides(),
      [memory](void*) {}, parameter.options().requires_grad(false));
  moved.copy_(parameter);
  at::Tensor(parameter).set_data(moved);
}

// Copies a small gradient to memory that peers map; zeros for a missing one.
void fill(std::byte* slot, const OptimizedParameter& parameter) {
  const at::Tensor gradient = gradient_of(parameter);
  if (parameter.tensor.nbytes() == 0) return;
  if (gradient.defined())
    std::memcpy(slot, bytes_at(gradient, 0), gradient.nbytes());
  else
    std::memset(slot, 0, parameter.tensor.nbytes());
}

// The update that the group calls while it traverses the parameters.
class PieceUpdate final : public ShardUpdate {
 public:
  explicit PieceUpdate(const OptimizerShard& shard) : shard_(shard) {}

  void add(std::size_t piece, const Piece& place) {
    of_shard_.push_back(piece);
    pieces_.push_back(place);
  }
  std::span<const Piece> pieces() const override { return pieces_; }
  void update(std::size_t piece, std::size_t begin, std::size_t count,
              const std::byte* combined) override {
    const std::size_t own = of_shard_[piece];
    const auto element =
        static_cast<std::size_t>(shard_.parameter_of(own).element_size());
    shard_.update(own, begin, {combined, count * element});
  }

 private:
  const OptimizerShard& shard_;
  std::vector<std::size_t> of_shard_;
  std::vector<Piece> pieces_;
};

}  // namespace

struct FusedShardedStep::OfType {
  struct Small {
    std::size_t parameter = 0;
    std::size_t offset = 0;  // in bytes
  };

  DataType type = DataType::kFloat32;
  std::vector<Small> small;  // in two blocks
  std::vector<std::size_t> large;
  std::size_t block_bytes = 0;
  std::shared_ptr<std::byte> parameters, gradients;  // the blocks
};

// One operation's buffers, and the position in them of each parameter that it
// updates.
struct FusedShardedStep::Lists {
  std::vector<Buffer> gradients, values;
  std::vector<std::optional<ShardUpdate::Piece>> places;
  std::vector<at::Tensor> held;  // gradients in use

  void add(const OfType& type, void* gradient, void* value, std::size_t bytes) {
    const auto count = static_cast<std::int64_t>(bytes / size_of(type.type));
    gradients.push_back({gradient, count, type.type});
    values.push_back({value, count, type.type});
  }
};

FusedShardedStep::FusedShardedStep(std::shared_ptr<ProcessGroup> group,
                                   OptimizerShard& shard)
    : group_(std::move(group)), shard_(shard) {
  const c10::AutoGradMode no_grad(false);
  allocate_tensors_from(group_->core().heap());
  for (std::size_t i = 0; i < shard_.parameters().size(); ++i) add(i);
  for (const auto& type : types_) lay_out(*type);
}

void FusedShardedStep::add(std::size_t parameter) {
  const at::Tensor& tensor = shard_.parameters()[parameter].tensor;
  const DataType type = data_type_of(tensor.scalar_type());
  auto found = std::ranges::find_if(types_, [type](const auto& known) {
    return known->type == type && known->large.size() < kMostLarge;
  });
  if (found == types_.end()) {
    types_.push_back(std::make_shared<OfType>());
    types_.back()->type = type;
    found = types_.end() - 1;
  }
  OfType& of_type = **found;
  if (tensor.nbytes() >= kLeastHeapTensor) {
    of_type.large.push_back(parameter);
    return;
  }
  of_type.small.push_back({parameter, of_type.block_bytes});
  of_type.block_bytes =
      round_up_to(Heap::kAlignment, of_type.block_bytes + tensor.nbytes());
}

void FusedShardedStep::lay_out(OfType& type) {
  type.parameters = group_->allocate(type.block_bytes);
  type.gradients = group_->allocate(type.block_bytes);
  bring_home(type);
}

// Loading or converting a module gives its parameters other memory.
void FusedShardedStep::bring_home(const OfType& type) {
  const auto parameters = shard_.parameters();
  for (const auto& [parameter, offset] : type.small) {
    const at::Tensor& tensor = parameters[parameter].tensor;
    if (tensor.nbytes() > 0 &&
        tensor.const_data_ptr() != type.parameters.get() + offset)
      move_to(type.parameters, offset, tensor);
  }
  const auto heap = group_->core().heap();
  for (const std::size_t parameter : type.large) {
    const at::Tensor& tensor = parameters[parameter].tensor;
    if (heap &&
        !heap->shared_offset_of(tensor.const_data_ptr(), tensor.nbytes()))
      move_to(group_->allocate(tensor.nbytes()), 0, tensor);
  }
}

std::vector<char> FusedShardedStep::run(std::vector<char> settled) {
  for (const auto& type : types_) {
    bring_home(*type);
    run(*type, settled);
  }
  return settled;
}

void FusedShardedStep::run(const OfType& type, std::vector<char>& settled) {
  const auto parameters = shard_.parameters();
  const Lists lists = list(type, settled);
  PieceUpdate update(shard_);
  for (std::size_t i = 0; i < shard_.pieces().size(); ++i) {
    const ShardPlan::Piece& piece = shard_.pieces()[i];
    const auto& place = lists.places[piece.parameter];
    if (place)
      update.add(i,
                 {place->buffer, place->begin + piece.begin, piece.elements});
  }
  group_->core()
      .sharded_update(lists.gradients, lists.values, ReduceOp::kAverage, update,
                      {.label = "step of a sharded optimizer"})
      .wait();
  if (!update.carried_out) return;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (lists.places[i]) settled[i] = 1;
}

// The blocks are reduced whole, also where some of their parameters are
// settled.
FusedShardedStep::Lists FusedShardedStep::list(
    const OfType& type, const std::vector<char>& settled) const {
  const auto parameters = shard_.parameters();
  Lists lists;
  lists.places.resize(parameters.size());
  lists.add(type, type.gradients.get(), type.parameters.get(),
            type.block_bytes);
  for (const auto& [parameter, offset] : type.small) {
    if (settled[parameter] != 0) continue;
    fill(type.gradients.get() + offset, parameters[parameter]);
    lists.places[parameter] = {.begin = offset / size_of(type.type)};
  }
  for (const std::size_t parameter : type.large) {
    if (settled[parameter] != 0) continue;
    const at::Tensor& tensor = parameters[parameter].tensor;
    at::Tensor gradient = gradient_of(parameters[parameter]);
    if (!gradient.defined())
      gradient =
          at::zeros({tensor.numel()}, tensor.options().requires_grad(false));
    lists.places[parameter] = {.buffer = lists.values.size()};
    lists.add(type, bytes_at(gradient, 0), bytes_at(tensor, 0),
              tensor.nbytes());
    lists.held.push_back(std::move(gradient));
  }
  return lists;
}

}  // namespace lockstep
