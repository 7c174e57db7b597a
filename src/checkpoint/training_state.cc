#include "src/checkpoint/training_state.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/gradient_scaler.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/checkpoint/checkpoint_seal.h"
#include "src/checkpoint/checkpoint_search.h"
#include "src/checkpoint/optimizer_tensors.h"
#include "src/checkpoint/rank_zero.h"
#include "src/comm/group/same_text.h"
#include "src/torch/ddp/replicate.h"
#include "src/torch/optim/optimizer_shard.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

constexpr std::string_view kSavingState = "saving a checkpoint";
constexpr const char* kRanksKey = "lockstep.ranks";
constexpr const char* kOptimizerKey = "lockstep.optimizer";
constexpr const char* kJobPrefix = "lockstep.job.";
constexpr const char* kCounterPrefix = "counter.";
constexpr const char* kOptimizerPrefix = "optimizer.";
constexpr const char* kScale = "scaler.scale";
constexpr const char* kGrowthTracker = "scaler.growth_tracker";

std::string rank_prefix(std::int64_t rank) {
  return "rank." + std::to_string(rank) + ".";
}

// A rank's own state, as tensors.
NamedTensors own_tensors(const TrainingState& state) {
  NamedTensors tensors;
  for (auto [name, generator] : state.generators) {
    const std::scoped_lock lock(generator.mutex());
    tensors["generator." + name] = generator.get_state();
  }
  for (const auto& [name, tensor] : state.own)
    tensors["own." + name] = storable(name, tensor);
  return tensors;
}

// Throws where saving would read what is not there, or write what no format
// holds.
void check_members(const TrainingState& state, int rank) {
  const auto refuse = [](const std::string& what, const std::string& next) {
    throw InvalidArgument("a checkpoint cannot be saved: " + what +
                          "\n  next:    " + next);
  };
  for (const auto& [name, counter] : state.counters)
    if (counter == nullptr)
      refuse("the counter \"" + name + "\" is a null pointer",
             "set it to the variable that the training loop uses");
  for (const auto& [name, generator] : state.generators)
    if (!generator.defined())
      refuse("the generator \"" + name + "\" is undefined",
             "set it to a generator, or leave it out");
  if (rank == 0 && state.optimizer != nullptr && !state.model)
    refuse("the optimizer's state needs the names of its parameters",
           "set TrainingState::model, too");
  if (state.model)
    for (const auto& [name, tensor] : tensors_of(*state.model))
      check_storable(name, tensor);
}

// What describes the ranks' own tensors, which are the same but for their
// elements.
std::string outline_of(const NamedTensors& own) {
  std::string text;
  for (const auto& [name, tensor] : own)
    text +=
        c10::str(name, " ", tensor.scalar_type(), " ", tensor.sizes(), "\n");
  return text;
}

// Checks the state on every rank, and returns this rank's own. A collective,
// before others in which a rank that threw would be missing.
NamedTensors checked_own(const TrainingState& state, ProcessGroup& group) {
  NamedTensors own;
  run_on_all_ranks(group, kSavingState, [&] {
    check_members(state, group.rank());
    own = own_tensors(state);
  });
  check_same_text(
      group, outline_of(own),
      {.what = "have different tensors to save in a checkpoint",
       .likely = "TrainingState::own or TrainingState::generators differ",
       .next = "give them the same names, types and shapes on every rank"});
  return own;
}

// Every rank's `own` on rank 0, named by rank. Ranks send them as concatenated
// bytes.
NamedTensors gather_own(const NamedTensors& own, ProcessGroup& group) {
  std::vector<at::Tensor> bytes{at::zeros({1}, at::kByte)};  // never empty
  for (const auto& [name, tensor] : own)
    bytes.push_back(tensor.flatten().view(at::kByte));
  const at::Tensor packed = at::cat(bytes);
  const at::Tensor all = at::empty({group.size(), packed.numel()}, at::kByte);
  group
      .gather(view(packed), view(all), 0,
              {.label = "saving a checkpoint: what each rank has"})
      .wait();
  NamedTensors gathered;
  for (int rank = 0; group.rank() == 0 && rank < group.size(); ++rank) {
    std::int64_t at = 1;
    for (const auto& [name, tensor] : own) {
      const auto count = static_cast<std::int64_t>(tensor.nbytes());
      gathered[rank_prefix(rank) + name] = all[rank]
                                               .narrow(0, at, count)
                                               .clone()
                                               .view(tensor.scalar_type())
                                               .view(tensor.sizes());
      at += count;
    }
  }
  return gathered;
}

// The state of all ranks, with that of the optimizer as `optimizer` says.
TensorArchive assemble(const TrainingState& state,
                       const OptimizerTensors& optimizer, int ranks) {
  TensorArchive archive;
  archive.metadata = {{"format", "pt"}, {kRanksKey, std::to_string(ranks)}};
  if (state.model)
    add_part(archive.tensors, std::string(kModelPrefix),
             tensors_of(*state.model));
  if (state.optimizer != nullptr) {
    archive.metadata[kOptimizerKey] = optimizer.kind;
    add_part(archive.tensors, kOptimizerPrefix, optimizer.tensors);
  }
  for (const auto& [name, counter] : state.counters)
    archive.tensors[kCounterPrefix + name] =
        at::scalar_tensor(*counter, at::kLong);
  if (state.scaler != nullptr && state.scaler->is_enabled()) {
    const auto& scale = state.scaler->state_dict();
    archive.tensors[kScale] = at::scalar_tensor(scale.scale, at::kDouble);
    archive.tensors[kGrowthTracker] =
        at::scalar_tensor(scale.growth_tracker, at::kLong);
  }
  for (const auto& [key, text] : state.job)
    archive.metadata[kJobPrefix + key] = text;
  return archive;
}

// This rank's share of the optimizer's state, if it is sharded; otherwise all
// of it.
ShardTensors optimizer_of(const TrainingState& state, int ranks) {
  if (state.optimizer == nullptr) return {};
  const auto* sharded =
      dynamic_cast<const ZeroRedundancyOptimizer*>(state.optimizer);
  if (sharded == nullptr)
    return state.model ? ShardTensors{.options = tensors_of(*state.optimizer,
                                                            *state.model)}
                       : ShardTensors{};
  if (!state.model)
    throw InvalidArgument(
        "a sharded optimizer cannot be saved without the model, which names "
        "its parameters\n  next:    set TrainingState::model on every rank");
  if (const auto holders = sharded->shard().plan().ranks.size();
      holders != static_cast<std::size_t>(ranks))
    throw InvalidArgument(
        "the optimizer's state is divided among " + std::to_string(holders) +
        " ranks, and " + std::to_string(ranks) +
        " save the checkpoint\n  next:    set CheckpointFolderOptions::group "
        "to the optimizer's group, or save checkpoints in one file");
  return shard_of(*sharded, *state.model);
}

// Whether ranks divide a tensor that all of them have: the others are small and
// rank 0's, or, as an archive, differ in their bytes.
bool is_divided(const std::string& name) {
  return name.starts_with(kModelPrefix) ||
         name.starts_with(std::string(kOptimizerPrefix) + "state.");
}

// What the tensors of a checkpoint in memory hold of the optimizer.
enum class SavedOptimizer { kWhole, kShard };
// Whether an optimizer may take a tensor instead of copying it.
enum class Keeping { kForbidden, kAllowed };

bool is_sharded(const TrainingState& state) {
  return dynamic_cast<const ZeroRedundancyOptimizer*>(state.optimizer) !=
         nullptr;
}

// First checks whether everything fits, then applies it; in between, the ranks
// agree.
class Restoring {
 public:
  Restoring(const TrainingState& state, const ProcessGroup& group,
            const std::string& file)
      : state_(state), rank_(group.rank()), ranks_(group.size()), file_(file) {}

  // Throws if something does not fit; changes nothing.
  void check(const TensorArchive& checkpoint) {
    checkpoint_ = checkpoint;
    check();
    check_optimizer(part_of(checkpoint_.tensors, kOptimizerPrefix),
                    Keeping::kForbidden);
  }

  // Throws if `checkpoint`, of the present state, would not fit it; copies none
  // of its tensors.
  void check_own(const TensorArchive& checkpoint,
                 SavedOptimizer optimizer) try {
    checkpoint_ = checkpoint;
    check();
    if (optimizer == SavedOptimizer::kWhole)
      check_optimizer(part_of(checkpoint_.tensors, kOptimizerPrefix),
                      Keeping::kAllowed);
  } catch (const InvalidArgument& error) {
    const std::string problem = error.what();
    throw InvalidArgument(
        "the state cannot be saved, since it could not be restored: " +
        problem.substr(0, problem.find("\n  next:")) +
        "\n  next:    mend that part of TrainingState, or leave it out");
  }

  // The same from a set.
  void check(const CheckpointSet& set) {
    checkpoint_.metadata = set.manifest().texts;
    for (const char* prefix : {kCounterPrefix, "rank.", "scaler."})
      checkpoint_.tensors.merge(read_tensors(set, prefix));
    if (state_.model)
      checkpoint_.tensors.merge(read_tensors(set, kModelPrefix));
    check();
    if (state_.optimizer == nullptr || !state_.model) return;
    if (auto* sharded =
            dynamic_cast<ZeroRedundancyOptimizer*>(state_.optimizer))
      put_optimizer_ = prepare_shard(text(kOptimizerKey), set, kOptimizerPrefix,
                                     *state_.model, *sharded);
    else
      check_optimizer(
          part_of(read_tensors(set, kOptimizerPrefix), kOptimizerPrefix),
          Keeping::kAllowed);
  }

  // Call it after check(). It starts with the optimizer, the only part that may
  // still refuse.
  void apply() const {
    if (put_optimizer_) put_optimizer_();
    copy_over(ours_, model_);
    for (const auto& [name, counter] : state_.counters)
      *counter =
          tensor(kCounterPrefix + name, at::kLong, 1).item<std::int64_t>();
    if (has_scale()) state_.scaler->load_state_dict(saved_scale());
    for (const auto& [name, generator] : state_.generators)
      restore_generator(name, generator);
    const c10::AutoGradMode no_grad(false);
    copy_over(state_.own, own_);
  }

 private:
  void check_optimizer(NamedTensors saved, Keeping keeping) {
    if (state_.optimizer == nullptr || !state_.model) return;
    put_optimizer_ =
        prepare_optimizer({.kind = text(kOptimizerKey),
                           .tensors = std::move(saved),
                           .may_keep = keeping == Keeping::kAllowed},
                          *state_.model, *state_.optimizer);
  }

  // All but the optimizer.
  void check() {
    if (state_.optimizer != nullptr && !state_.model && rank_ == 0)
      refuse(
          "cannot be restored: TrainingState::optimizer needs "
          "TrainingState::model, which names its parameters");
    read_saved_ranks();
    check_job();
    check_model();
    for (const auto& [name, counter] : state_.counters)
      tensor(kCounterPrefix + name, at::kLong, 1);
    if (has_scale()) check_scale();
    for (const auto& [name, generator] : state_.generators)
      check_generator(name, generator);
    for (const auto& [name, mine] : state_.own)
      own_[name] = own_value(name, mine);
  }

  [[noreturn]] void refuse(const std::string& problem) const {
    throw InvalidArgument("the checkpoint \"" + file_ + "\" " + problem +
                          "\n  next:    resume the job that saved it, or "
                          "train from the start into another folder");
  }

  std::string text(const std::string& key) const {
    const auto found = checkpoint_.metadata.find(key);
    if (found == checkpoint_.metadata.end()) refuse("lacks the text " + key);
    return found->second;
  }

  const at::Tensor& tensor(const std::string& name, at::ScalarType type,
                           std::int64_t count) const {
    const auto found = checkpoint_.tensors.find(name);
    if (found == checkpoint_.tensors.end()) refuse("lacks \"" + name + "\"");
    if (found->second.scalar_type() != type || found->second.numel() != count)
      refuse("has \"" + name + "\" of another size or type");
    return found->second;
  }

  void read_saved_ranks() {
    const std::string number = text(kRanksKey);
    const char* const end = number.data() + number.size();
    const auto [rest, error] =
        std::from_chars(number.data(), end, saved_ranks_);
    if (error != std::errc{} || rest != end || saved_ranks_ < 1)
      refuse("claims that \"" + number +
             "\" ranks saved it, which is not a number of ranks");
  }

  std::string saved_property(const std::string& key) const {
    const auto found = checkpoint_.metadata.find(kJobPrefix + key);
    if (found != checkpoint_.metadata.end()) return found->second;
    const auto otherwise = state_.job_defaults.find(key);
    return otherwise == state_.job_defaults.end() ? "not known"
                                                  : otherwise->second;
  }

  void check_job() const {
    std::string lines;
    for (const auto& [key, here] : state_.job) {
      const std::string there = saved_property(key);
      if (here != there)
        lines += "\n  " + key + " was " + there + ", but is " + here + " now";
    }
    if (!lines.empty()) refuse("belongs to another job:" + lines);
  }

  void check_model() {
    if (!state_.model) return;
    model_ = part_of(checkpoint_.tensors, kModelPrefix);
    ours_ = tensors_of(*state_.model);
    if (const std::string lines = differences(ours_, model_); !lines.empty())
      refuse("belongs to another model:" + lines);
  }

  // The scale comes from the file if both have one: a run may change its
  // precision.
  bool has_scale() const {
    return state_.scaler != nullptr && state_.scaler->is_enabled() &&
           checkpoint_.tensors.contains(kScale);
  }

  GradientScaler::State saved_scale() const {
    return {.scale = tensor(kScale, at::kDouble, 1).item<double>(),
            .growth_tracker = static_cast<int>(
                tensor(kGrowthTracker, at::kLong, 1).item<std::int64_t>())};
  }

  void check_scale() const {
    const auto saved = saved_scale();
    if (tensor(kGrowthTracker, at::kLong, 1).item<std::int64_t>() !=
        saved.growth_tracker)
      refuse("has \"" + std::string(kGrowthTracker) + "\" out of range");
    try {
      GradientScaler(*state_.scaler).load_state_dict(saved);
    } catch (const InvalidArgument& error) {
      refuse(std::string("cannot be restored: ") + error.what());
    }
  }

  // The state of this rank, or of an earlier rank.
  at::Tensor generator_state(const std::string& name) const {
    const std::string key =
        rank_prefix(rank_ % saved_ranks_) + "generator." + name;
    const auto found = checkpoint_.tensors.find(key);
    if (found == checkpoint_.tensors.end()) refuse("lacks \"" + key + "\"");
    return found->second.clone();
  }

  // Only a generator can check its state; this copy draws nothing.
  void check_generator(const std::string& name, at::Generator generator) const {
    const at::Tensor saved = generator_state(name);
    const std::scoped_lock lock(generator.mutex());
    try {
      generator.clone().set_state(saved);
    } catch (const c10::Error& error) {
      refuse("has an invalid state of the generator \"" + name +
             "\": " + error.what_without_backtrace());
    }
  }

  void restore_generator(const std::string& name,
                         at::Generator generator) const {
    const std::scoped_lock lock(generator.mutex());
    generator.set_state(generator_state(name));
    if (rank_ < saved_ranks_) return;
    // Two ranks must not draw the same numbers.
    const std::uint64_t drawn = generator.current_seed();
    generator.set_current_seed(drawn + static_cast<std::uint64_t>(rank_) *
                                           0x9e3779b97f4a7c15U);
  }

  // Every rank checks all ranks' values.
  at::Tensor own_value(const std::string& name, const at::Tensor& mine) const {
    const auto of_rank = [&](std::int64_t rank) {
      return tensor(rank_prefix(rank) + "own." + name, mine.scalar_type(),
                    mine.numel())
          .view(mine.sizes());
    };
    if (saved_ranks_ == ranks_) return of_rank(rank_);
    at::Tensor sum = at::zeros_like(mine, mine.options().device(at::kCPU));
    for (std::int64_t rank = 0; rank < saved_ranks_; ++rank)
      if (const at::Tensor theirs = of_rank(rank); rank_ == 0) sum.add_(theirs);
    return sum;
  }

  const TrainingState& state_;
  TensorArchive checkpoint_;
  const std::int64_t rank_;
  const std::int64_t ranks_;
  const std::string file_;

  // From check(), for apply().
  std::int64_t saved_ranks_ = 1;
  NamedTensors ours_, model_;
  NamedTensors own_;
  std::function<void()> put_optimizer_;
};

// Copies the saved buffers to all ranks, so that a continued run equals a
// resumed one. If a rank has no model of its own, buffers stay unchanged.
void broadcast_buffers(const TrainingState& state, ProcessGroup& group) {
  std::vector<at::Tensor> buffers;
  if (state.model)
    for (const at::Tensor& buffer : state.model->buffers())
      buffers.push_back(without_repeats(buffer));
  std::vector<std::int64_t> count{std::ssize(buffers)};
  group
      .all_reduce(view(count), ReduceOp::kMin,
                  {.label = "saving a checkpoint: buffers"})
      .wait();
  if (count[0] > 0) broadcast_tensors(group, buffers, 0);
}

}  // namespace

at::Generator default_cpu_generator() {
  return at::detail::getDefaultCPUGenerator();
}

void collect(const TrainingState& state, ProcessGroup& group,
             const std::function<void(TensorArchive)>& keep) {
  const c10::AutoGradMode no_grad(false);
  NamedTensors own = gather_own(checked_own(state, group), group);
  broadcast_buffers(state, group);
  if (state.optimizer != nullptr) consolidate_if_sharded(*state.optimizer);
  run_on_rank_zero(group, kSavingState, [&] {
    OptimizerTensors optimizer;
    if (state.optimizer != nullptr)
      optimizer = tensors_of(*state.optimizer, *state.model);
    TensorArchive archive = assemble(state, optimizer, group.size());
    add_part(archive.tensors, "", own);
    Restoring(state, group, "to save")
        .check_own(archive, SavedOptimizer::kWhole);
    keep(std::move(archive));
  });
}

std::vector<StatePiece> collect_pieces(const TrainingState& state,
                                       ProcessGroup& group,
                                       SafetensorsMetadata& texts) {
  const c10::AutoGradMode no_grad(false);
  NamedTensors own;
  add_part(own, rank_prefix(group.rank()), checked_own(state, group));
  broadcast_buffers(state, group);
  std::vector<StatePiece> divided, undivided;
  PiecesDigest digest;
  run_on_all_ranks(group, kSavingState, [&] {
    ShardTensors optimizer = optimizer_of(state, group.size());
    TensorArchive all = assemble(state, optimizer.options, group.size());
    for (const auto& [name, tensor] : all.tensors)
      if (is_divided(name))
        divided.push_back(whole_piece(name, tensor));
      else if (group.rank() == 0)
        undivided.push_back(whole_piece(name, tensor));
    for (StatePiece& piece : optimizer.pieces) {
      piece.name.insert(0, kOptimizerPrefix);
      undivided.push_back(std::move(piece));
    }
    for (const auto& [name, tensor] : own)
      undivided.push_back(whole_piece(name, tensor));
    add_part(all.tensors, "", own);
    Restoring(state, group, "to save")
        .check_own(all, is_sharded(state) ? SavedOptimizer::kShard
                                          : SavedOptimizer::kWhole);
    texts = std::move(all.metadata);
    digest = digest_of(divided);
  });
  std::vector<StatePiece> mine = divide_pieces(divided, digest, group);
  std::ranges::move(undivided, std::back_inserter(mine));
  return mine;
}

void restore(const TrainingState& state, const TensorArchive& checkpoint,
             ProcessGroup& group, const std::string& file) {
  Restoring restoring(state, group, file);
  run_on_all_ranks(group, kLoading, [&] { restoring.check(checkpoint); });
  restoring.apply();
}

bool restore(const TrainingState& state, const CheckpointSet& set,
             ProcessGroup& group, const std::string& file) {
  const c10::AutoGradMode no_grad(false);
  Restoring restoring(state, group, file);
  std::array<std::int64_t, 1> gone{0};
  run_on_all_ranks(group, kLoading, [&] {
    try {
      restoring.check(set);
    } catch (const SystemError& error) {
      if (!CheckpointSet::is_gone(set.path(), error)) throw;
      gone[0] = 1;
    }
  });
  group
      .all_reduce(view(std::span<std::int64_t>(gone)), ReduceOp::kMax,
                  {.label = kLoading})
      .wait();
  if (gone[0] == 0) restoring.apply();
  return gone[0] == 0;
}

}  // namespace lockstep
