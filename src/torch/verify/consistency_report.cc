#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/consistency.h"
#include "lockstep/torch/sync_batch_norm.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/base/suggest.h"
#include "src/torch/compare/replica_difference.h"
#include "src/torch/verify/consistency_table.h"
#include "src/torch/verify/gradient_fingerprints.h"

namespace lockstep {
namespace {

Fingerprint total_of(const NamedTensorList& tensors) {
  return fingerprint_of(std::span<const Fingerprint>(fingerprints_of(tensors)));
}

void append(Fingerprint& so_far, const at::Tensor& tensor) {
  const Fingerprint both[] = {so_far, fingerprint_of(tensor)};
  so_far = fingerprint_of(std::span(both));
}

bool all_finite(const at::Tensor& tensor) {
  return !tensor.defined() ||
         at::isfinite(tensor.detach().to_dense()).all().item<bool>();
}

Fingerprint fingerprint_of_random_numbers() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return fingerprint_of(generator.get_state());
}

void check_names(const std::vector<std::string>& names,
                 const NamedTensorList& parameters) {
  std::vector<std::string_view> known;
  for (const auto& [name, tensor] : parameters) known.push_back(name);
  for (const std::string& name : names)
    if (std::ranges::find(known, name) == known.end())
      throw InvalidArgument(unknown_name("parameter", name, known));
}

at::Tensor tensor_named(const NamedTensorList& tensors,
                        const std::string& name) {
  return std::ranges::find(tensors, name, &NamedTensorList::value_type::first)
      ->second;
}

// Buffers that ranks compute from all ranks' samples.
std::unordered_set<const c10::TensorImpl*> synchronized_buffers(
    const torch::nn::Module& module) {
  std::unordered_set<const c10::TensorImpl*> found;
  const torch::nn::Module::ConstModuleApplyFunction add =
      [&](const torch::nn::Module& part) {
        const auto* norm = dynamic_cast<const SyncBatchNormImpl*>(&part);
        if (norm == nullptr || norm->statistics() == BatchStatistics::kOfRank)
          return;
        for (const at::Tensor& buffer : norm->buffers())
          found.insert(buffer.unsafeGetTensorImpl());
      };
  module.apply(add);
  return found;
}

}  // namespace

ConsistencyReport::ConsistencyReport(
    std::shared_ptr<const torch::nn::Module> module,
    const ConsistencyReportOptions& options)
    : module_(std::move(module)),
      group_(options.group ? options.group : default_group()),
      options_(options),
      own_(std::make_unique<OwnHashes>()) {
  if (!module_) throw InvalidArgument("ConsistencyReport: the module is null");
  if (options.steps < 1 || options.show_elements < 1)
    throw InvalidArgument(
        "ConsistencyReport: the numbers of steps and of elements to show must "
        "be at least 1");
  if (options.initial_weights == Expected::kDifferent)
    throw InvalidArgument(
        "ConsistencyReport: initial_weights must be kEqual or kEither");
  std::vector<at::Tensor> tensors;
  for (const auto& item : module_->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    trained_.emplace_back(item.key(), item.value());
    tensors.push_back(item.value());
  }
  check_names(options.show, trained_);
  own_->gradients.emplace(tensors,
                          options.show.empty() ? 0 : options.show_elements);
  compare_start();
}

ConsistencyReport::~ConsistencyReport() = default;

bool ConsistencyReport::add(std::string what, Expected must,
                            const std::vector<Fingerprint>& by_rank) {
  rows_.push_back(compare(std::move(what), must, by_rank));
  rows_.back().step = step_;
  return rows_.back().right;
}

void ConsistencyReport::compare_start() {
  const NamedTensorList parameters = module_->named_parameters().pairs();
  own_->weights = total_of(parameters);
  weights_were_equal_ = add("initial weights", options_.initial_weights,
                            gather(*group_, own_->weights));
  began_apart_ = group_->size() > 1 && rows_.back().found != "equal";
  if (!weights_were_equal_)
    accuse(describe(*find_difference(*group_, parameters)),
           "the module was not wrapped yet, or weights were loaded or changed "
           "on some ranks after it was",
           "wrap it in DistributedDataParallel, which copies rank 0's to all "
           "ranks, and load weights before that or on every rank; for a "
           "report that begins before, set .initial_weights = "
           "Expected::kEither");
  const NamedTensorList buffers = module_->named_buffers().pairs();
  own_->buffers = fingerprints_of(buffers);
  if (!buffers.empty() && !add("initial buffers", options_.initial_weights,
                               gather(*group_, total_of(buffers))))
    accuse(describe(*find_difference(*group_, buffers)),
           "buffers were set on some ranks after the module was wrapped",
           "set them before, or on every rank");
  compare_random_numbers();
  end_step();
}

void ConsistencyReport::data(const at::Tensor& input) {
  if (!done()) append(own_->data, input);
}

void ConsistencyReport::outputs(const at::Tensor& output) {
  if (done()) return;
  append(own_->outputs, output);
  own_->outputs_are_finite = own_->outputs_are_finite && all_finite(output);
}

void ConsistencyReport::loss(const at::Tensor& loss) {
  if (done()) return;
  append(own_->loss, loss);
  own_->loss_is_finite = own_->loss_is_finite && all_finite(loss);
}

void ConsistencyReport::gradients() {
  if (done()) return;
  compare_wrapped();
  compare_pass();
  const auto own = gather(*group_, fingerprint_of(std::span<const Fingerprint>(
                                       own_->gradients->fingerprints())));
  const Expected different = options_.data == Expected::kDifferent
                                 ? Expected::kDifferent
                                 : Expected::kEither;
  NamedTensorList reduced;
  for (const auto& [name, tensor] : trained_)
    reduced.emplace_back(name, tensor.grad());
  if (!add("gradients of each rank", different, own))
    accuse_of_equal(
        equal_ranks(own) + " have computed the same gradients",
        std::ranges::all_of(reduced, all_finite,
                            &NamedTensorList::value_type::second),
        "the loss does not depend on the data, or the same batch was passed "
        "twice",
        "check what the loss is computed from");
  const auto averaged = gather(*group_, total_of(reduced));
  if (!add("gradients, reduced", options_.reduced_gradients, averaged)) {
    if (options_.reduced_gradients == Expected::kDifferent)
      accuse(equal_ranks(averaged) + " have the same gradients",
             "something averages them, but each rank should step on its own",
             "remove the averaging, or expect equal gradients");
    else if (const auto difference = find_difference(*group_, reduced))
      explain_gradients(*difference);
  }
  keep_heads_of_gradients();
}

void ConsistencyReport::step_done() {
  if (done()) return;
  compare_pass();
  compare_weights();
  compare_buffers();
  compare_random_numbers();
  text_ += shown_values();
  end_step();
}

// Compares the weights before the optimizer's first step.
void ConsistencyReport::compare_wrapped() {
  if (step_ != 1 || options_.initial_weights == Expected::kEqual) return;
  const NamedTensorList parameters = module_->named_parameters().pairs();
  own_->weights = total_of(parameters);
  weights_were_equal_ =
      add("weights, wrapped", Expected::kEqual, gather(*group_, own_->weights));
  if (!weights_were_equal_)
    accuse(describe(*find_difference(*group_, parameters)),
           "the module was not wrapped before the first step, or weights were "
           "loaded or changed on some ranks after it was",
           "wrap it in DistributedDataParallel, which copies rank 0's to all "
           "ranks, and load weights before that or on every rank");
}

void ConsistencyReport::compare_weights() {
  const NamedTensorList parameters = module_->named_parameters().pairs();
  const Fingerprint own = total_of(parameters);
  const bool equal =
      add("updated weights", Expected::kEqual, gather(*group_, own));
  if (!equal) {
    const auto unchanged = ranks_that(own == own_->weights);
    explain_weights(*find_difference(*group_, parameters), unchanged);
  }
  own_->weights = own;
  weights_were_equal_ = equal;
}

// Running statistics of a rank's own samples may differ until rank 0's are
// broadcast before the next pass. Rank 0's buffers show what passes write,
// since no broadcast changes them.
void ConsistencyReport::compare_buffers() {
  const NamedTensorList buffers = module_->named_buffers().pairs();
  if (buffers.empty()) return;
  const std::vector<Fingerprint> now = fingerprints_of(buffers);
  std::vector<Fingerprint> written(now.size());
  for (std::size_t i = 0; i < now.size(); ++i)
    written[i].low = now[i] != own_->buffers[i];
  const std::vector<Fingerprint> flags = gather_lists(*group_, written);
  own_->buffers = now;
  const auto synchronized = synchronized_buffers(*module_);
  NamedTensorList shared, own;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const bool may_differ =
        flags[i].low != 0 &&
        !synchronized.contains(buffers[i].second.unsafeGetTensorImpl());
    (may_differ ? own : shared).push_back(buffers[i]);
  }
  if (!shared.empty() &&
      !add("buffers", Expected::kEqual, gather(*group_, total_of(shared))))
    accuse(describe(*find_difference(*group_, shared)),
           "it was set on some ranks after the module was wrapped, and nothing "
           "broadcasts it: broadcast_buffers is false, or forward() of the "
           "module was called, not of its wrapper",
           "set it on every rank, or leave broadcast_buffers at true");
  if (!own.empty())
    add("statistics of own samples", Expected::kEither,
        gather(*group_, total_of(own)));
}

void ConsistencyReport::compare_random_numbers() {
  add("random number generator", Expected::kEither,
      gather(*group_, fingerprint_of_random_numbers()));
}

void ConsistencyReport::keep_heads_of_gradients() {
  reduced_heads_.clear();
  for (const std::string& name : options_.show) {
    const at::Tensor gradient = tensor_named(trained_, name).grad();
    reduced_heads_.push_back(gradient.defined()
                                 ? gradient.detach().to_dense().clone()
                                 : at::Tensor());
  }
}

std::string ConsistencyReport::shown_values() {
  std::vector<ValuesRow> table;
  const std::int64_t most = options_.show_elements;
  const auto show = [&](const std::string& what, const at::Tensor& tensor) {
    // The count, then the numbers.
    const at::Tensor own = at::zeros({most + 1}, at::kDouble);
    if (tensor.defined()) {
      const at::Tensor flat = tensor.detach().flatten();
      const std::int64_t count = std::min(most, flat.numel());
      own[0] = count;
      own.narrow(0, 1, count).copy_(flat.narrow(0, 0, count));
    }
    const at::Tensor all = at::empty({group_->size(), most + 1}, at::kDouble);
    group_->all_gather(view(own), view(all), {.label = "values to show"})
        .wait();
    ValuesRow& row = table.emplace_back(ValuesRow{what, {}});
    for (int rank = 0; rank < group_->size(); ++rank) {
      const auto* numbers = all[rank].const_data_ptr<double>();
      row.by_rank.emplace_back(
          numbers + 1, numbers + 1 + static_cast<std::int64_t>(numbers[0]));
    }
  };
  for (std::size_t i = 0; i < options_.show.size(); ++i) {
    const std::string& name = options_.show[i];
    const auto at =
        std::ranges::find(trained_, name, &NamedTensorList::value_type::first);
    show(name, at->second);
    show(
        name + ", gradient of each rank",
        own_->gradients->head(static_cast<std::size_t>(at - trained_.begin())));
    show(name + ", gradient, reduced",
         i < reduced_heads_.size() ? reduced_heads_[i] : at::Tensor());
  }
  return table_of(table, step_);
}

void ConsistencyReport::end_step() {
  const bool accused = verdict_ && verdict_->step == step_;
  if (accused || step_ == options_.steps)
    text_ += table_of(rows_, group_->size()) + note_on_wrapping();
  if (accused) text_ += text_of(*verdict_) + "\n";
  own_->data = own_->outputs = own_->loss = Fingerprint();
  own_->outputs_are_finite = own_->loss_is_finite = true;
  pass_compared_ = false;
  reduced_heads_.clear();
  own_->gradients->clear();
  ++step_;
  if (!done()) return;
  own_->gradients.reset();
  if (consistent())
    text_ += "verdict: the ranks are consistent, as far as step " +
             std::to_string(options_.steps) + "\n";
}

// A note where initial weights differed before wrapping made them equal.
std::string ConsistencyReport::note_on_wrapping() const {
  if (step_ == 0 || !began_apart_ || !consistent()) return "";
  return "initial weights differed: wrapping the module copied rank 0's to "
         "all ranks\n";
}

std::string ConsistencyReport::take_text() { return std::exchange(text_, ""); }

}  // namespace lockstep
