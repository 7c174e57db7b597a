// One list of fields per class of options and of state in LibTorch; one visitor
// writes the fields, another reads them.

#include "src/checkpoint/optimizer_tensors.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/gradient_scaler.h"
#include "src/torch/optim/optimizer_shard.h"
#include "src/torch/optim/update_state.h"

namespace lockstep {
namespace {

namespace optim = torch::optim;

void each_field(auto& visit, optim::SGDOptions& o) {
  visit("lr", o.lr());
  visit("momentum", o.momentum());
  visit("dampening", o.dampening());
  visit("weight_decay", o.weight_decay());
  visit("nesterov", o.nesterov());
}
void each_field(auto& visit, optim::SGDParamState& s) {
  visit("momentum_buffer", s.momentum_buffer());
}

template <class Visitor, class Options>
requires std::same_as<Options, optim::AdamOptions> ||
    std::same_as<Options, optim::AdamWOptions>
void each_field(Visitor& visit, Options& o) {
  visit("lr", o.lr());
  visit("betas", o.betas());
  visit("eps", o.eps());
  visit("weight_decay", o.weight_decay());
  visit("amsgrad", o.amsgrad());
}
template <class Visitor, class State>
requires std::same_as<State, optim::AdamParamState> ||
    std::same_as<State, optim::AdamWParamState>
void each_field(Visitor& visit, State& s) {
  visit("step", s.step());
  visit("exp_avg", s.exp_avg());
  visit("exp_avg_sq", s.exp_avg_sq());
  visit("max_exp_avg_sq", s.max_exp_avg_sq());
}

void each_field(auto& visit, optim::AdagradOptions& o) {
  visit("lr", o.lr());
  visit("lr_decay", o.lr_decay());
  visit("weight_decay", o.weight_decay());
  visit("initial_accumulator_value", o.initial_accumulator_value());
  visit("eps", o.eps());
}
void each_field(auto& visit, optim::AdagradParamState& s) {
  visit("sum", s.sum());
  visit("step", s.step());
}

void each_field(auto& visit, optim::RMSpropOptions& o) {
  visit("lr", o.lr());
  visit("alpha", o.alpha());
  visit("eps", o.eps());
  visit("weight_decay", o.weight_decay());
  visit("momentum", o.momentum());
  visit("centered", o.centered());
}
void each_field(auto& visit, optim::RMSpropParamState& s) {
  visit("step", s.step());
  visit("square_avg", s.square_avg());
  visit("momentum_buffer", s.momentum_buffer());
  visit("grad_avg", s.grad_avg());
}

// Fields to tensors under names that begin with `prefix`.
struct FieldWriter {
  NamedTensors& tensors;
  std::string prefix;

  void operator()(const char* name, const at::Tensor& value) const {
    if (value.defined()) put(name, value);
  }
  void operator()(const char* name, double value) const {
    put(name, at::scalar_tensor(value, at::kDouble));
  }
  void operator()(const char* name, std::int64_t value) const {
    put(name, at::scalar_tensor(value, at::kLong));
  }
  void operator()(const char* name, bool value) const {
    put(name, at::scalar_tensor(value, at::kBool));
  }
  void operator()(const char* name, std::tuple<double, double> value) const {
    put(name, at::stack({at::scalar_tensor(std::get<0>(value), at::kDouble),
                         at::scalar_tensor(std::get<1>(value), at::kDouble)}));
  }

  void put(const char* name, const at::Tensor& value) const {
    LOCKSTEP_CHECK(tensors.emplace(prefix + name, value).second,
                   "two items of an optimizer's state have one name");
  }
};

// Whether `name` is that of a field under `prefix`, which has no dots: a longer
// name belongs to another parameter.
bool is_field(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) &&
         name.find('.', prefix.size()) == std::string_view::npos;
}

[[noreturn]] void refuse_state(const std::string& problem) {
  throw InvalidArgument(
      "the optimizer's state in the checkpoint does not fit the optimizer: " +
      problem +
      "\n  next:    make the optimizer with the options and parameters with "
      "which it was saved");
}

// Tensors to fields. `like` is the parameter whose device and layout state
// takes.
struct FieldReader {
  const NamedTensors& tensors;
  std::string prefix;
  at::Tensor like{};
  bool may_keep = false;

  const at::Tensor& get(const char* name, at::ScalarType type,
                        std::int64_t count) const {
    const auto found = tensors.find(prefix + name);
    if (found == tensors.end()) refuse_state(prefix + name + " is missing");
    if (found->second.scalar_type() != type || found->second.numel() != count)
      refuse_state(prefix + name + " has an unexpected type or shape");
    return found->second;
  }

  void operator()(const char* name, at::Tensor& value) const {
    const auto found = tensors.find(prefix + name);
    value = at::Tensor();
    if (found == tensors.end()) return;
    if (found->second.sizes() != like.sizes())
      refuse_state(prefix + name + " has another shape than its parameter");
    if (may_keep && like.device() == found->second.device() &&
        found->second.strides() == like.strides()) {
      value = found->second;
      return;
    }
    value = at::empty_like(like, like.options()
                                     .dtype(found->second.scalar_type())
                                     .requires_grad(false))
                .copy_(found->second);
  }
  void operator()(const char* name, double& value) const {
    value = get(name, at::kDouble, 1).item<double>();
  }
  void operator()(const char* name, std::int64_t& value) const {
    value = get(name, at::kLong, 1).item<std::int64_t>();
  }
  void operator()(const char* name, bool& value) const {
    value = get(name, at::kBool, 1).item<bool>();
  }
  void operator()(const char* name, std::tuple<double, double>& value) const {
    const at::Tensor& both = get(name, at::kDouble, 2);
    value = {both[0].item<double>(), both[1].item<double>()};
  }
};

template <class OptionsClass, class StateClass>
struct Kind {
  using Options = OptionsClass;
  using State = StateClass;
  const char* name;
};

// Calls `call` with the Kind of all of the optimizer's options and state;
// returns whether such a Kind exists.
bool with_kind(const optim::Optimizer& optimizer, const auto& call) {
  const auto fits = [&]<class Options, class State>(Kind<Options, State> kind) {
    const bool options =
        std::ranges::all_of(optimizer.param_groups(), [](const auto& group) {
          return dynamic_cast<const Options*>(&group.options()) != nullptr;
        });
    const bool state =
        std::ranges::all_of(optimizer.state(), [](const auto& item) {
          return dynamic_cast<const State*>(item.second.get()) != nullptr;
        });
    if (options && state) call(kind);
    return options && state;
  };
  return fits(Kind<optim::SGDOptions, optim::SGDParamState>{"sgd"}) ||
         fits(Kind<optim::AdamOptions, optim::AdamParamState>{"adam"}) ||
         fits(Kind<optim::AdamWOptions, optim::AdamWParamState>{"adamw"}) ||
         fits(Kind<optim::AdagradOptions, optim::AdagradParamState>{
             "adagrad"}) ||
         fits(Kind<optim::RMSpropOptions, optim::RMSpropParamState>{"rmsprop"});
}

std::string group_prefix(std::size_t group) {
  return "group." + std::to_string(group) + ".";
}

// A parameter of an optimizer, and the prefix of its state's names.
struct Parameter {
  at::Tensor tensor;
  std::string prefix;
};

[[noreturn]] void refuse_name(const std::string& name) {
  throw InvalidArgument(
      "the state of two parameters of the optimizer would have the name \"" +
      name +
      "\" in a checkpoint: that of a parameter of the model, and of one in "
      "this "
      "place of the optimizer's groups, which the model does not have"
      "\n  next:    make all of the optimizer's parameters part of "
      "TrainingState::model");
}

// Each once.
std::vector<Parameter> parameters_of(const optim::Optimizer& optimizer,
                                     const torch::nn::Module& module) {
  std::map<const void*, std::string> names;
  for (const auto& item : module.named_parameters())
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  std::vector<Parameter> parameters;
  std::map<std::string, const void*> named;
  for (std::size_t group = 0; group < optimizer.param_groups().size();
       ++group) {
    const auto& tensors = optimizer.param_groups()[group].params();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const void* const tensor = tensors[i].unsafeGetTensorImpl();
      const auto found = names.find(tensor);
      const std::string name =
          found != names.end()
              ? found->second
              : std::to_string(group) + "." + std::to_string(i);
      const auto [known, is_new] = named.emplace(name, tensor);
      if (known->second != tensor) refuse_name(name);
      if (is_new) parameters.push_back({tensors[i], "state." + name + "."});
    }
  }
  return parameters;
}

template <class State>
void write_states(const optim::Optimizer& optimizer,
                  const torch::nn::Module& module, NamedTensors& tensors) {
  for (const auto& [tensor, prefix] : parameters_of(optimizer, module)) {
    const auto found = optimizer.state().find(tensor.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    const FieldWriter writer{tensors, prefix};
    each_field(writer, static_cast<State&>(*found->second));
  }
}

OptimizerTensors archive_of(const optim::Optimizer& optimizer) {
  std::vector<std::uint8_t> bytes;
  try {
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    archive.save_to([&](const void* from, std::size_t count) {
      const auto* begin = static_cast<const std::uint8_t*>(from);
      bytes.insert(bytes.end(), begin, begin + count);
      return count;
    });
  } catch (const c10::Error& error) {
    throw InvalidArgument(
        std::string("LibTorch cannot save the state of this optimizer: ") +
        error.what_without_backtrace() +
        "\n  next:    save the checkpoint without TrainingState::optimizer, or "
        "use another optimizer");
  }
  return {"archive", {{"archive", at::tensor(bytes, at::kByte)}}};
}

std::function<void()> prepare_archive(const NamedTensors& tensors,
                                      optim::Optimizer& optimizer) {
  const auto found = tensors.find("archive");
  if (found == tensors.end()) refuse_state("its archive is missing");
  const at::Tensor bytes = found->second.contiguous();
  const auto archive = std::make_shared<torch::serialize::InputArchive>();
  archive->load_from(static_cast<const char*>(bytes.const_data_ptr()),
                     bytes.nbytes());
  if (archive->keys().empty() && !optimizer.state().empty())
    refuse_state("its class has a state, of which its save() writes nothing");
  return [archive, &optimizer] { optimizer.load(*archive); };
}

// State and options of a sharded optimizer, from which each rank takes its
// share.
class WholeState final : public optim::Optimizer {
 public:
  explicit WholeState(const optim::Optimizer& sharded)
      : Optimizer(sharded.param_groups(),
                  sharded.param_groups().at(0).options().clone()) {
    // The base class treats options that equal a default as not given.
    for (std::size_t i = 0; i < param_groups_.size(); ++i)
      param_groups_[i].set_options(sharded.param_groups()[i].options().clone());
  }

  at::Tensor step(LossClosure /*closure*/) override {
    throw InternalError("step() was called on the state of an optimizer");
  }
};

// Whether it is a fused or sharded optimizer, whose kernels do not support all
// options of LibTorch's class.
bool has_our_kernels(const optim::Optimizer& optimizer) {
  return dynamic_cast<const ScalesGradients*>(&optimizer) != nullptr ||
         dynamic_cast<const WholeState*>(&optimizer) != nullptr;
}

// The state read for an optimizer of one kind.
template <class Kind>
struct Read {
  std::vector<std::unique_ptr<optim::OptimizerOptions>> options{};
  std::map<c10::TensorImpl*, std::unique_ptr<typename Kind::State>> states{};
};

template <class Kind>
void read_options(const OptimizerTensors& stored,
                  const optim::Optimizer& optimizer, Read<Kind>& read) {
  const auto& groups = optimizer.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto& options = *read.options.emplace_back(groups[i].options().clone());
    const FieldReader reader{stored.tensors, group_prefix(i)};
    each_field(reader, static_cast<typename Kind::Options&>(options));
  }
  const bool fewer = std::ranges::any_of(stored.tensors, [&](const auto& item) {
    return item.first.starts_with(group_prefix(groups.size()));
  });
  if (fewer) refuse_state("it has more groups of parameters");
  if (!has_our_kernels(optimizer)) return;
  for (const auto& options : read.options) update_rule(*options);
}

template <class Kind>
void read_states(const OptimizerTensors& stored,
                 const torch::nn::Module& module,
                 const optim::Optimizer& optimizer, Read<Kind>& read) {
  std::size_t used = 0;
  for (const auto& [tensor, prefix] : parameters_of(optimizer, module)) {
    const auto fields = static_cast<std::size_t>(std::ranges::count_if(
        stored.tensors,
        [&](const auto& item) { return is_field(item.first, prefix); }));
    auto& state = read.states[tensor.unsafeGetTensorImpl()];
    if (fields == 0) continue;
    used += fields;
    state = std::make_unique<typename Kind::State>();
    const FieldReader reader{stored.tensors, prefix, tensor, stored.may_keep};
    each_field(reader, *state);
  }
  if (used != part_of(stored.tensors, "state.").size())
    refuse_state("it has state of parameters that the optimizer does not have");
}

template <class Kind>
std::function<void()> prepare_as(const OptimizerTensors& stored,
                                 const torch::nn::Module& module,
                                 optim::Optimizer& optimizer) {
  const auto read = std::make_shared<Read<Kind>>();
  read_options(stored, optimizer, *read);
  read_states(stored, module, optimizer, *read);
  return [read, &optimizer] {
    optimizer.state().clear();
    for (auto& [tensor, state] : read->states)
      if (state) optimizer.state()[tensor] = std::move(state);
    for (std::size_t i = 0; i < read->options.size(); ++i)
      optimizer.param_groups()[i].set_options(std::move(read->options[i]));
  };
}

std::function<void()> prepare_plain(const OptimizerTensors& stored,
                                    const torch::nn::Module& module,
                                    optim::Optimizer& optimizer) {
  std::function<void()> put;
  const bool known = with_kind(optimizer, [&]<class Kind>(const Kind& kind) {
    if (stored.kind != kind.name)
      refuse_state("it is of kind " + stored.kind +
                   ", and the optimizer of kind " + kind.name);
    put = prepare_as<Kind>(stored, module, optimizer);
  });
  if (known) return put;
  if (stored.kind != "archive")
    refuse_state("it is of kind " + stored.kind +
                 ", and the optimizer of another");
  return prepare_archive(stored.tensors, optimizer);
}

OptimizerTensors tensors_in(const optim::Optimizer& optimizer,
                            const torch::nn::Module& module) {
  OptimizerTensors result;
  const bool known = with_kind(optimizer, [&]<class Kind>(const Kind& kind) {
    result.kind = kind.name;
    const auto& groups = optimizer.param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      typename Kind::Options options =
          static_cast<const typename Kind::Options&>(groups[i].options());
      const FieldWriter writer{result.tensors, group_prefix(i)};
      each_field(writer, options);
    }
    write_states<typename Kind::State>(optimizer, module, result.tensors);
  });
  return known ? result : archive_of(optimizer);
}

// By parameter.
std::map<const c10::TensorImpl*, std::string> prefixes_of(
    const optim::Optimizer& optimizer, const torch::nn::Module& module) {
  std::map<const c10::TensorImpl*, std::string> prefixes;
  for (const auto& [tensor, prefix] : parameters_of(optimizer, module))
    prefixes.emplace(tensor.unsafeGetTensorImpl(), prefix);
  return prefixes;
}

// The fields of a piece's state, of which the flat ones are its elements. The
// numbers of a parameter are those of its first piece.
void add_fields(const NamedTensors& fields, const at::Tensor& parameter,
                const ShardPlan::Piece& piece,
                std::vector<StatePiece>& pieces) {
  const auto begin = static_cast<std::int64_t>(piece.begin);
  for (const auto& [name, tensor] : fields) {
    if (tensor.dim() == 0) {
      if (begin == 0) pieces.push_back(whole_piece(name, tensor));
      continue;
    }
    pieces.push_back({.name = name,
                      .part = {.shape = parameter.sizes().vec(),
                               .begin = begin,
                               .order = order_of(parameter)},
                      .elements = tensor});
  }
}

// A piece's state, from a set.
struct PieceReader {
  const CheckpointSet& set;
  std::string prefix;
  const at::Tensor& like;
  const ShardPlan::Piece& piece;

  void operator()(const char* name, at::Tensor& value) const {
    value = at::Tensor();
    if (!set.contains(prefix + name)) return;
    if (at::IntArrayRef(set.tensors().at(prefix + name).shape) != like.sizes())
      refuse_state(prefix + name + " has another shape than its parameter");
    value = read_piece(set, prefix + name, like,
                       static_cast<std::int64_t>(piece.begin),
                       static_cast<std::int64_t>(piece.elements))
                .to(like.device(), state_scalar_type(like));
  }
  void operator()(const char* name, std::int64_t& value) const {
    NamedTensors number;
    if (set.contains(prefix + name))
      number.emplace(prefix + name, read_tensor(set, prefix + name));
    FieldReader{number, prefix}(name, value);
  }
};

template <class Kind>
std::vector<UpdateState> read_pieces(
    const CheckpointSet& set, const std::string& prefix,
    const std::map<const c10::TensorImpl*, std::string>& prefixes,
    const OptimizerShard& shard) {
  std::vector<UpdateState> states(shard.pieces().size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    const ShardPlan::Piece& piece = shard.pieces()[i];
    const at::Tensor& parameter = shard.parameter_of(i);
    const std::string name =
        prefix + prefixes.at(parameter.unsafeGetTensorImpl());
    if (std::ranges::none_of(set.tensors(), [&](const auto& item) {
          return is_field(item.first, name);
        }))
      continue;
    typename Kind::State state;
    const PieceReader reader{set, name, parameter, piece};
    each_field(reader, state);
    states[i] = read_state(&state);
  }
  return states;
}

void check_states(const CheckpointSet& set, const std::string& prefix,
                  const std::map<const c10::TensorImpl*, std::string>& names) {
  for (const auto& item : set.tensors())
    if (item.first.starts_with(prefix + "state.") &&
        std::ranges::none_of(names, [&](const auto& known) {
          return is_field(item.first, prefix + known.second);
        }))
      refuse_state(
          "it has state of parameters that the optimizer does not have");
}

template <class Kind>
std::function<void()> prepare_shard_as(const CheckpointSet& set,
                                       const std::string& prefix,
                                       const torch::nn::Module& module,
                                       ZeroRedundancyOptimizer& optimizer) {
  const OptimizerTensors options{
      .tensors = part_of(read_tensors(set, prefix + "group."), prefix)};
  const auto read = std::make_shared<Read<Kind>>();
  read_options(options, optimizer, *read);
  const auto prefixes = prefixes_of(optimizer, module);
  check_states(set, prefix, prefixes);
  const auto states = std::make_shared<std::vector<UpdateState>>(
      read_pieces<Kind>(set, prefix, prefixes, optimizer.shard()));
  return [read, states, &optimizer] {
    load_shard(optimizer, std::move(*states));
    for (std::size_t i = 0; i < read->options.size(); ++i)
      optimizer.param_groups()[i].set_options(std::move(read->options[i]));
  };
}

}  // namespace

void consolidate_if_sharded(optim::Optimizer& optimizer) {
  if (auto* sharded = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer))
    sharded->consolidate_state_dict(0);
}

OptimizerTensors tensors_of(const optim::Optimizer& optimizer,
                            const torch::nn::Module& module) {
  if (const auto* sharded =
          dynamic_cast<const ZeroRedundancyOptimizer*>(&optimizer))
    return tensors_of(sharded->state_dict(), module);
  return tensors_in(optimizer, module);
}

ShardTensors shard_of(const ZeroRedundancyOptimizer& optimizer,
                      const torch::nn::Module& module) {
  // state() of a sharded optimizer is empty: only the options are in it.
  ShardTensors result{.options = tensors_in(optimizer, module)};
  const OptimizerShard& shard = optimizer.shard();
  const auto prefixes = prefixes_of(optimizer, module);
  for (std::size_t i = 0; i < shard.pieces().size(); ++i) {
    const ShardPlan::Piece& piece = shard.pieces()[i];
    const OptimizedParameter& parameter = shard.parameters()[piece.parameter];
    std::unique_ptr<optim::OptimizerParamState> state;
    if (shard.states()[i].numbers[0].defined())
      write_state(
          shard.states()[i],
          update_rule(optimizer.param_groups()[parameter.group].options()),
          state);
    if (!state) continue;
    NamedTensors fields;
    const FieldWriter writer{
        fields, prefixes.at(parameter.tensor.unsafeGetTensorImpl())};
    with_kind(optimizer, [&]<class Kind>(const Kind&) {
      each_field(writer, static_cast<typename Kind::State&>(*state));
    });
    add_fields(fields, parameter.tensor, piece, result.pieces);
  }
  return result;
}

std::function<void()> prepare_shard(const std::string& kind,
                                    const CheckpointSet& set,
                                    const std::string& prefix,
                                    const torch::nn::Module& module,
                                    ZeroRedundancyOptimizer& optimizer) {
  std::function<void()> put;
  with_kind(optimizer, [&]<class Kind>(const Kind& own) {
    if (kind != own.name)
      refuse_state("it is of kind " + kind + ", and the optimizer of kind " +
                   own.name);
    put = prepare_shard_as<Kind>(set, prefix, module, optimizer);
  });
  LOCKSTEP_CHECK(put != nullptr, "a sharded optimizer of an unknown kind");
  return put;
}

std::function<void()> prepare_optimizer(const OptimizerTensors& stored,
                                        const torch::nn::Module& module,
                                        optim::Optimizer& optimizer) {
  auto* sharded = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer);
  if (sharded == nullptr) return prepare_plain(stored, module, optimizer);
  const auto whole = std::make_shared<WholeState>(optimizer);
  prepare_plain(stored, module, *whole)();
  return [whole, sharded] { sharded->load_state_dict(*whole); };
}

void load_optimizer(const OptimizerTensors& stored,
                    const torch::nn::Module& module,
                    optim::Optimizer& optimizer) {
  prepare_optimizer(stored, module, optimizer)();
}

}  // namespace lockstep
