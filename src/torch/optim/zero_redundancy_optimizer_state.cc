// Converts the state of all ranks to that of an optimizer that is not sharded,
// and back.
//
// File format, names and options are LibTorch's: saving and loading go through
// an optimizer of the same kind that has the whole state. Ranks send their
// shares one after another, so the gathering rank needs room for the whole
// state and one more share.

#include <torch/serialize/archive.h>

#include <cstring>
#include <string>
#include <typeinfo>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/optimizers.h"
#include "src/torch/optim/optimizer_shares.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;

// Precedes a piece's numbers; with `numbers` 0 the piece has no state.
struct PieceHeader {
  std::int64_t step = 0;
  std::int64_t numbers = 0;  // tensors
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  void read(void* to, std::size_t count) {
    LOCKSTEP_CHECK(count <= bytes_.size(), "a rank packed less than it has");
    std::memcpy(to, bytes_.data(), count);
    bytes_ = bytes_.subspan(count);
  }

 private:
  std::span<const std::byte> bytes_;
};

void append(std::vector<std::byte>& to, const void* from, std::size_t count) {
  const auto* bytes = static_cast<const std::byte*>(from);
  to.insert(to.end(), bytes, bytes + count);
}

// Moves rank `from`'s `packed` to rank `to`, where it is returned. A collective
// of all ranks, though only two exchange data: it needs no tag.
std::vector<std::byte> move_bytes(ProcessGroup& group,
                                  std::span<const std::byte> packed, int from,
                                  int to) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::int64_t> size{static_cast<std::int64_t>(packed.size())};
  group.broadcast(view(size), from, {.label = "size of optimizer state"})
      .wait();
  const bool sends = group.rank() == from, receives = group.rank() == to;
  std::vector<std::byte> received(receives ? static_cast<std::size_t>(size[0])
                                           : 0);
  std::vector<Buffer> inputs(ranks, view_bytes({}));
  std::vector<Buffer> outputs(ranks, view_bytes({}));
  if (sends) inputs[static_cast<std::size_t>(to)] = view_bytes(packed);
  if (receives) outputs[static_cast<std::size_t>(from)] = view_bytes(received);
  group.all_to_all_v(inputs, outputs, {.label = "optimizer state"}).wait();
  return received;
}

void check_same_kind(const Optimizer& ours, const Optimizer& theirs) {
  const auto& own = ours.param_groups();
  const auto& others = theirs.param_groups();
  bool same = own.size() == others.size();
  for (std::size_t i = 0; same && i < own.size(); ++i) {
    const auto& a = own[i].options();
    const auto& b = others[i].options();
    same = own[i].params().size() == others[i].params().size() &&
           typeid(a) == typeid(b);
  }
  if (!same)
    throw InvalidArgument(
        "cannot load the state of an optimizer of another kind, or of other "
        "groups of parameters"
        "\n  next:    load the state of an optimizer with the same options "
        "and groups");
}

}  // namespace

std::unique_ptr<Optimizer> ZeroRedundancyOptimizer::make_whole() const {
  std::unique_ptr<Optimizer> whole;
  const auto* options = defaults_.get();
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(options))
    whole = std::make_unique<FusedSGD>(param_groups_, *sgd);
  if (const auto* adam =
          dynamic_cast<const torch::optim::AdamOptions*>(options))
    whole = std::make_unique<FusedAdam>(param_groups_, *adam);
  if (const auto* adamw =
          dynamic_cast<const torch::optim::AdamWOptions*>(options))
    whole = std::make_unique<FusedAdamW>(param_groups_, *adamw);
  LOCKSTEP_CHECK(whole != nullptr, "a rule that has no optimizer");
  // LibTorch treats an option that equals its class's default as not given;
  // here all are given.
  for (std::size_t i = 0; i < param_groups_.size(); ++i)
    whole->param_groups()[i].set_options(param_groups_[i].options().clone());
  return whole;
}

std::vector<std::byte> ZeroRedundancyOptimizer::Shares::pack() const {
  std::vector<std::byte> packed;
  for (const UpdateState& state : shard_->states()) {
    PieceHeader header{.step = state.step};
    for (const at::Tensor& numbers : state.numbers)
      if (numbers.defined()) ++header.numbers;
    append(packed, &header, sizeof header);
    for (const at::Tensor& numbers : state.numbers)
      if (numbers.defined())
        append(packed, numbers.cpu().const_data_ptr(), numbers.nbytes());
  }
  return packed;
}

void ZeroRedundancyOptimizer::Shares::unpack(std::span<const std::byte> packed,
                                             std::size_t rank,
                                             const Groups& groups,
                                             Optimizer& whole) const {
  Reader reader(packed);
  for (const auto& piece : shard_->plan().ranks[rank]) {
    PieceHeader header;
    reader.read(&header, sizeof header);
    if (header.numbers == 0) continue;
    const auto& parameter = shard_->parameters()[piece.parameter];
    const at::Tensor& tensor = parameter.tensor;
    auto& kept = whole.state()[tensor.unsafeGetTensorImpl()];
    UpdateState state = read_state(kept.get());
    state.step = header.step;
    for (std::size_t i = 0; i < static_cast<std::size_t>(header.numbers); ++i) {
      at::Tensor& numbers = state.numbers[i];
      if (!numbers.defined())
        numbers = at::zeros_like(
            tensor, tensor.options().dtype(state_scalar_type(tensor)));
      const at::Tensor place = OptimizerShard::part_of(numbers, piece);
      const at::Tensor read =
          at::empty(place.sizes(), place.options().device(at::kCPU));
      reader.read(read.mutable_data_ptr(), read.nbytes());
      place.copy_(read);
    }
    write_state(state, update_rule(groups[parameter.group].options()), kept);
  }
}

void ZeroRedundancyOptimizer::consolidate_state_dict(int to) {
  ProcessGroup& group = shares_->group();
  if (to < 0 || to >= group.size())
    throw InvalidArgument("consolidate_state_dict: there is no rank " +
                          std::to_string(to) + " in a group of " +
                          std::to_string(group.size()));
  const c10::AutoGradMode no_grad(false);
  const bool gathers = group.rank() == to;
  shares_->set_whole(nullptr);
  auto whole = gathers ? make_whole() : nullptr;
  for (int rank = 0; rank < group.size(); ++rank) {
    std::vector<std::byte> packed;
    if (rank == group.rank()) packed = shares_->pack();
    if (rank != to) packed = move_bytes(group, packed, rank, to);
    if (gathers)
      shares_->unpack(packed, static_cast<std::size_t>(rank), param_groups_,
                      *whole);
  }
  shares_->set_whole(std::move(whole));
}

const Optimizer& ZeroRedundancyOptimizer::state_dict() const {
  if (const Optimizer* const whole = shares_->whole()) return *whole;
  const ProcessGroup& group = shares_->group();
  throw InvalidArgument(
      "the state of the optimizer is in shards: rank " +
      std::to_string(group.rank()) + " of " + std::to_string(group.size()) +
      " has only its own part"
      "\n  next:    call consolidate_state_dict() on every rank after the "
      "last step, then save on the rank that it names");
}

void ZeroRedundancyOptimizer::load_state_dict(const Optimizer& whole) {
  check_same_kind(*this, whole);
  OptimizerShard& shard = shares_->shard();
  const c10::AutoGradMode no_grad(false);
  for (std::size_t i = 0; i < shard.pieces().size(); ++i) {
    const ShardPlan::Piece& piece = shard.pieces()[i];
    const auto& parameter = shard.parameters()[piece.parameter];
    const at::Tensor& theirs =
        whole.param_groups()[parameter.group].params()[parameter.index];
    const auto found = whole.state().find(theirs.unsafeGetTensorImpl());
    UpdateState state = read_state(
        found == whole.state().end() ? nullptr : found->second.get());
    for (at::Tensor& numbers : state.numbers)
      if (numbers.defined())
        numbers = OptimizerShard::part_of(state_for(parameter, numbers), piece)
                      .clone();
    shard.set_state(i, std::move(state));
  }
  for (std::size_t i = 0; i < param_groups_.size(); ++i)
    param_groups_[i].set_options(whole.param_groups()[i].options().clone());
  shares_->set_whole(nullptr);
}

void load_shard(ZeroRedundancyOptimizer& optimizer,
                std::vector<UpdateState> states) {
  OptimizerShard& shard = optimizer.shares_->shard();
  LOCKSTEP_CHECK(states.size() == shard.pieces().size(),
                 "the state of another shard");
  for (std::size_t i = 0; i < states.size(); ++i)
    shard.set_state(i, std::move(states[i]));
  optimizer.shares_->set_whole(nullptr);
}

void ZeroRedundancyOptimizer::save(
    torch::serialize::OutputArchive& archive) const {
  state_dict().save(archive);
}

void ZeroRedundancyOptimizer::load(torch::serialize::InputArchive& archive) {
  const auto whole = make_whole();
  whole->load(archive);
  load_state_dict(*whole);
}

}  // namespace lockstep
