#include "lockstep/torch/elastic.h"

#include <torch/serialize.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/torch/horovod.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/base/log.h"
#include "src/comm/group/elastic_job.h"
#include "src/torch/ddp/replicate.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep::elastic {
namespace {

std::string archive_of(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
}

void load_archive(const std::string& text, torch::optim::Optimizer& optimizer) {
  torch::serialize::InputArchive archive;
  archive.load_from(text.data(), text.size());
  optimizer.state().clear();  // what the archive has none of
  try {
    optimizer.load(archive);
  } catch (const c10::Error& error) {
    throw InvalidArgument(
        std::string("elastic::State: the optimizer does not take back the "
                    "state that was committed: ") +
        error.what_without_backtrace() +
        "\n  likely:  its groups of parameters have changed since\n"
        "  next:    add all groups before the program makes the State");
  }
}

// All tensors of the contents, by distinct names.
torch::OrderedDict<std::string, at::Tensor> tensors_of(
    const StateContents& contents) {
  torch::OrderedDict<std::string, at::Tensor> tensors;
  if (contents.model) tensors = named_parameters_and_buffers(*contents.model);
  for (const auto& [name, tensor] : contents.tensors)
    tensors.insert("tensors: " + name, tensor);
  return tensors;
}

// On a device a wait orders streams, not the host: a commit there could copy
// what a failed reduction has left, before this rank learns of the failure.
void refuse_devices(const torch::OrderedDict<std::string, at::Tensor>& all) {
  for (const auto& item : all) {
    if (!item.value().defined())
      throw InvalidArgument("elastic::State: " + item.key() +
                            " is an undefined tensor");
    if (!item.value().is_cpu())
      throw InvalidArgument(c10::str(
          "elastic::State: ", item.key(), " is on ", item.value().device(),
          ", but a state is kept on the CPU alone"
          "\n  next:    train on the CPU, or with checkpoints and lockstep run "
          "--max-restarts"));
  }
}

bool are_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

// What must be equal on ranks that exchange their states: the names of the
// contents.
std::int64_t hash_of_names(const StateContents& contents) {
  std::string names;
  for (const auto& item : tensors_of(contents)) names += item.key() + '\n';
  for (const auto& [name, counter] : contents.counters) names += name + '\n';
  return static_cast<std::int64_t>(std::hash<std::string>()(names));
}

// Whether the group may have failed because a rank died.
bool is_groups_failure(const std::exception& error) {
  return dynamic_cast<const PeerFailure*>(&error) != nullptr ||
         dynamic_cast<const NetworkError*>(&error) != nullptr ||
         dynamic_cast<const Timeout*>(&error) != nullptr;
}

// The error of a group that did not form after `cause` had ended the one
// before.
[[noreturn]] void fail_to_form(const Timeout& error, const std::string& cause) {
  throw Timeout(std::string(error.what()) + "\n  before:  " + cause);
}

// Whether the launcher has begun another round: the same answer on every rank,
// since only rank 0 asks the store.
bool is_superseded(ElasticJob& job, ProcessGroup& group) {
  std::vector<std::int32_t> answer{0};
  if (group.rank() == 0) answer[0] = job.is_superseded() ? 1 : 0;
  if (group.size() > 1)
    group.broadcast(view(answer), 0, {.label = "elastic commit"}).wait();
  return answer[0] != 0;
}

// Ranks may end their training far apart, where one evaluates for example; a
// rank that dies ends the wait.
constexpr std::chrono::hours kOthersTrain{24};

// Ends the training on all members of the round or on none: once one rank has
// ended its training, the work of a rank that dies is not repeated. Returns the
// failure of the group that came before; empty if the training has ended.
std::string end_together(ElasticJob& job) {
  if (!is_initialized())
    throw InvalidArgument(
        "elastic::run: the training function has destroyed the default group, "
        "in which the ranks agree on the end\n"
        "  next:    call destroy_process_group() after run()");
  std::string failure = "the launcher has seen a rank die";
  bool met = true;
  try {
    if (get_world_size() > 1)
      default_group()
          ->barrier({.timeout = kOthersTrain, .label = "elastic end"})
          .wait();
  } catch (const Error& error) {
    if (!is_groups_failure(error)) throw;
    failure = error.what();
    met = false;
  }
  return job.end_round(met) ? "" : failure;
}

}  // namespace

struct State::Saved {
  std::vector<at::Tensor> tensors;
  std::string optimizer;
  std::vector<std::int64_t> counters;
};

State::State(StateContents contents) : contents_(std::move(contents)) {
  refuse_devices(tensors_of(contents_));
  if (dynamic_cast<ZeroRedundancyOptimizer*>(contents_.optimizer) != nullptr)
    throw InvalidArgument(
        "elastic::State: a ZeroRedundancyOptimizer keeps a share of its state "
        "on each rank, and the share of a rank that dies is lost\n"
        "  next:    use FusedSGD, FusedAdam or an optimizer of LibTorch, or "
        "train with checkpoints and lockstep run --max-restarts");
  save();
  commits_ = 0;
}

State::~State() = default;

void State::save() {
  const torch::NoGradGuard no_grad;
  if (!saved_) saved_ = std::make_unique<Saved>();
  std::vector<at::Tensor>& copies = saved_->tensors;
  const auto tensors = tensors_of(contents_);
  copies.resize(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor now = tensors[i].value().detach();
    if (copies[i].defined() && are_alike(copies[i], now))
      copies[i].copy_(now);
    else
      copies[i] = now.clone();
  }
  if (contents_.optimizer) saved_->optimizer = archive_of(*contents_.optimizer);
  saved_->counters.clear();
  for (const auto& [name, counter] : contents_.counters)
    saved_->counters.push_back(*counter);
  ++commits_;
}

void State::restore() {
  const torch::NoGradGuard no_grad;
  const auto tensors = tensors_of(contents_);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor now = tensors[i].value();
    const at::Tensor& saved = saved_->tensors.at(i);
    if (are_alike(now, saved))
      copy_elements(saved, now);
    else
      now.set_data(saved.clone());
  }
  if (contents_.optimizer)
    load_archive(saved_->optimizer, *contents_.optimizer);
  for (std::size_t i = 0; const auto& [name, counter] : contents_.counters)
    *counter = saved_->counters.at(i++);
  reset_gradients();
}

void State::reset_gradients() {
  if (!contents_.model) return;
  for (at::Tensor& parameter : contents_.model->parameters())
    parameter.mutable_grad() = at::Tensor();
}

void State::commit() {
  save();
  ElasticJob* const job = elastic_job();
  if (job != nullptr && is_superseded(*job, *default_group()))
    throw HostsUpdatedInterrupt(
        "the launcher has announced new ranks; elastic::run forms a group with "
        "them and goes on after this commit");
}

void State::sync() {
  const auto group = default_group();
  const auto gather = [&](std::int64_t value, std::string_view label) {
    std::vector<std::int64_t> mine{value};
    std::vector<std::int64_t> all(static_cast<std::size_t>(group->size()));
    group->all_gather(view(mine), view(all), {.label = label}).wait();
    return all;
  };
  const auto names = gather(hash_of_names(contents_), "elastic names");
  if (std::ranges::adjacent_find(names, std::ranges::not_equal_to()) !=
      names.end())
    throw InvalidArgument(
        "elastic::run: the ranks pass states with different names of "
        "parameters, buffers, tensors or counters\n"
        "  likely:  a rank is in another call of run(), or has another model\n"
        "  next:    give every rank the same state");
  const auto all = gather(commits_, "elastic commits");
  const auto most = std::ranges::max_element(all);
  if (*most < 0)
    throw Error(
        "elastic::run: no rank has a state to go on from: all that had one "
        "have ended, and every rank is a replacement\n"
        "  next:    start the job anew, from a checkpoint if there is one");
  broadcast_contents(static_cast<int>(most - all.begin()));
  reset_gradients();
  save();
  commits_ = *most + 1;
  synchronized_ = true;
}

void State::broadcast_contents(int root) {
  const auto group = default_group();
  if (group->size() == 1) return;
  broadcast_by_name(*group, tensors_of(contents_), root);
  if (contents_.optimizer)
    horovod::broadcast_optimizer_state(*contents_.optimizer, root, group);
  std::vector<std::int64_t> counters;
  for (const auto& [name, counter] : contents_.counters)
    counters.push_back(*counter);
  if (counters.empty()) return;
  group->broadcast(view(counters), root, {.label = "elastic counters"}).wait();
  for (std::size_t i = 0; const auto& [name, counter] : contents_.counters)
    *counter = counters.at(i++);
}

void State::register_reset_callbacks(
    std::vector<std::function<void()>> callbacks) {
  std::ranges::move(callbacks, std::back_inserter(reset_callbacks_));
}

void State::on_reset() {
  for (const auto& callback : reset_callbacks_) callback();
}

void run(State& state, const std::function<void(State&)>& train,
         const InitOptions& options) {
  if (ElasticJob* const job = elastic_job();
      job != nullptr && job->is_complete())
    throw Error(
        "elastic::run: this job has ended its training: ranks that replace "
        "others begin with the first run(), so there is only one\n"
        "  next:    put all parts of the training into one function, with a "
        "counter that says which part comes next");
  state.save();  // what the program has changed since it made the state
  std::optional<std::string> cause;
  for (bool first = true;; first = false) {
    try {
      if (!is_initialized()) init_process_group(options);
    } catch (const Timeout& error) {
      if (!cause) throw;
      fail_to_form(error, *cause);
    }
    ElasticJob* const job = elastic_job();
    const bool replaces = job != nullptr && !job->is_first_worker();
    if (replaces && !state.synchronized_) state.commits_ = -1;
    try {
      // A new rank gets by sync() what the callbacks change.
      if (!first && (!replaces || state.synchronized_)) state.on_reset();
      state.sync();
      if (job != nullptr) job->joined();
      train(state);
      if (job == nullptr) return;
      cause = end_together(*job);
      if (cause->empty()) return;
    } catch (const HostsUpdatedInterrupt&) {
      if (job == nullptr) throw;
      cause.reset();
    } catch (const PeerFailure& error) {
      if (job == nullptr) throw;
      cause = error.what();
    } catch (const NetworkError& error) {
      if (job == nullptr) throw;
      cause = error.what();
    } catch (const Timeout& error) {
      if (job == nullptr) throw;
      cause = error.what();
    }  // no other: a program that ends by it shows where it comes from
    if (cause) log(LogLevel::kWarn, "elastic::run leaves the group: " + *cause);
    // First, so that no peer writes to what restore() allocates.
    destroy_process_group();
    if (cause) state.restore();
  }
}

}  // namespace lockstep::elastic
