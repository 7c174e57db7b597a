#include "src/torch/verify/consistency_watch.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/sync_batch_norm.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/base/suggest.h"
#include "src/torch/compare/replica_difference.h"
#include "src/torch/verify/consistency_table.h"

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

ConsistencyReport::Watch::Watch(std::shared_ptr<const torch::nn::Module> module,
                                const ConsistencyReportOptions& options)
    : module_(std::move(module)),
      group_(options.group ? options.group : default_group()),
      options_(options) {
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
  own_.gradients.emplace(tensors,
                         options.show.empty() ? 0 : options.show_elements);
  compare_start();
}

bool ConsistencyReport::Watch::add(std::string what, Expected must,
                                   const std::vector<Fingerprint>& by_rank) {
  rows_.push_back(compare(std::move(what), must, by_rank));
  rows_.back().step = step_;
  return rows_.back().right;
}

// The row added last is the first wrong one; later ones are consequences.
void ConsistencyReport::Watch::accuse(const ConsistencyCause& cause) {
  if (verdict_) return;
  verdict_ = {.step = step_,
              .what = rows_.back().what,
              .where = cause.where,
              .likely = cause.likely,
              .next = cause.next};
}

void ConsistencyReport::Watch::accuse_of_equal(const ConsistencyCause& cause,
                                               bool own_are_finite) {
  accuse(ranks_that(!own_are_finite).empty() ? cause : diverged(cause));
}

std::vector<int> ConsistencyReport::Watch::ranks_that(bool own) {
  const auto flags = gather(*group_, Fingerprint{.low = own, .high = 0});
  std::vector<int> ranks;
  for (int rank = 0; rank < group_->size(); ++rank)
    if (flags[static_cast<std::size_t>(rank)].low != 0) ranks.push_back(rank);
  return ranks;
}

void ConsistencyReport::Watch::compare_start() {
  const NamedTensorList parameters = module_->named_parameters().pairs();
  own_.weights = total_of(parameters);
  weights_were_equal_ = add("initial weights", options_.initial_weights,
                            gather(*group_, own_.weights));
  began_apart_ = group_->size() > 1 && rows_.back().found != "equal";
  if (!weights_were_equal_)
    accuse(initial_weights_differ(*find_difference(*group_, parameters)));
  const NamedTensorList buffers = module_->named_buffers().pairs();
  own_.buffers = fingerprints_of(buffers);
  if (!buffers.empty() && !add("initial buffers", options_.initial_weights,
                               gather(*group_, total_of(buffers))))
    accuse(initial_buffers_differ(*find_difference(*group_, buffers)));
  compare_random_numbers();
  end_step();
}

void ConsistencyReport::Watch::data(const at::Tensor& input) {
  if (!done()) append(own_.data, input);
}

void ConsistencyReport::Watch::outputs(const at::Tensor& output) {
  if (done()) return;
  append(own_.outputs, output);
  own_.outputs_are_finite = own_.outputs_are_finite && all_finite(output);
}

void ConsistencyReport::Watch::loss(const at::Tensor& loss) {
  if (done()) return;
  append(own_.loss, loss);
  own_.loss_is_finite = own_.loss_is_finite && all_finite(loss);
}

void ConsistencyReport::Watch::gradients() {
  if (done()) return;
  compare_wrapped();
  compare_pass();
  const auto own = gather(*group_, fingerprint_of(std::span<const Fingerprint>(
                                       own_.gradients->fingerprints())));
  const Expected different = options_.data == Expected::kDifferent
                                 ? Expected::kDifferent
                                 : Expected::kEither;
  NamedTensorList reduced;
  for (const auto& [name, tensor] : trained_)
    reduced.emplace_back(name, tensor.grad());
  if (!add("gradients of each rank", different, own))
    accuse_of_equal(same_gradients(equal_ranks(own)),
                    std::ranges::all_of(reduced, all_finite,
                                        &NamedTensorList::value_type::second));
  const auto averaged = gather(*group_, total_of(reduced));
  if (!add("gradients, reduced", options_.reduced_gradients, averaged)) {
    if (options_.reduced_gradients == Expected::kDifferent)
      accuse(same_reduced_gradients(equal_ranks(averaged)));
    else if (const auto difference = find_difference(*group_, reduced))
      accuse(
          reduced_gradients_differ(*difference, find_unreduced(*difference)));
  }
  keep_heads_of_gradients();
}

void ConsistencyReport::Watch::step_done() {
  if (done()) return;
  compare_pass();
  compare_weights();
  compare_buffers();
  compare_random_numbers();
  text_ += shown_values();
  end_step();
}

// Data, outputs and loss; once per step.
void ConsistencyReport::Watch::compare_pass() {
  if (pass_compared_) return;
  pass_compared_ = true;
  const auto told = [](const std::vector<Fingerprint>& by_rank) {
    return std::ranges::any_of(
        by_rank, [](const Fingerprint& one) { return one != Fingerprint(); });
  };
  const auto data = gather(*group_, own_.data);
  if (told(data) && !add("data", options_.data, data))
    accuse(options_.data == Expected::kDifferent
               ? same_samples(equal_ranks(data))
               : other_samples());
  const Expected expected = options_.data == Expected::kDifferent
                                ? Expected::kDifferent
                                : Expected::kEither;
  const auto outputs = gather(*group_, own_.outputs);
  bool outputs_differ = false;
  if (told(outputs)) {
    outputs_differ = add("outputs", expected, outputs);
    if (!outputs_differ)
      accuse_of_equal(same_outputs(equal_ranks(outputs)),
                      own_.outputs_are_finite);
  }
  const auto loss = gather(*group_, own_.loss);
  if (!told(loss) || add("loss", expected, loss)) return;
  if (outputs_differ) {  // two numbers may be equal by chance
    rows_.back().must = Expected::kEither;
    rows_.back().right = true;
    return;
  }
  accuse_of_equal(same_loss(equal_ranks(loss)), own_.loss_is_finite);
}

Unreduced ConsistencyReport::Watch::find_unreduced(
    const ReplicaDifference& difference) {
  bool all = true;
  bool this_one = false;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const auto& [name, tensor] = trained_[i];
    const bool unreduced =
        fingerprint_of(tensor.grad()) == own_.gradients->unreduced()[i];
    all = all && unreduced;
    if (name == difference.tensor) this_one = unreduced;
  }
  const bool all_everywhere = everywhere(all);
  const bool this_everywhere = everywhere(this_one);
  if (all_everywhere) return Unreduced::kAll;
  return this_everywhere ? Unreduced::kThis : Unreduced::kNone;
}

// Compares the weights before the optimizer's first step.
void ConsistencyReport::Watch::compare_wrapped() {
  if (step_ != 1 || options_.initial_weights == Expected::kEqual) return;
  const NamedTensorList parameters = module_->named_parameters().pairs();
  own_.weights = total_of(parameters);
  weights_were_equal_ =
      add("weights, wrapped", Expected::kEqual, gather(*group_, own_.weights));
  if (!weights_were_equal_)
    accuse(wrapped_weights_differ(*find_difference(*group_, parameters)));
}

void ConsistencyReport::Watch::compare_weights() {
  const NamedTensorList parameters = module_->named_parameters().pairs();
  const Fingerprint own = total_of(parameters);
  const bool equal =
      add("updated weights", Expected::kEqual, gather(*group_, own));
  if (!equal) {
    const auto unchanged = ranks_that(own == own_.weights);
    const auto difference = find_difference(*group_, parameters);
    accuse(weights_were_equal_
               ? updated_weights_differ(*difference, unchanged, group_->size())
               : weights_differed_before(*difference));
  }
  own_.weights = own;
  weights_were_equal_ = equal;
}

// Running statistics of a rank's own samples may differ until rank 0's are
// broadcast before the next pass. Rank 0's buffers show what passes write,
// since no broadcast changes them.
void ConsistencyReport::Watch::compare_buffers() {
  const NamedTensorList buffers = module_->named_buffers().pairs();
  if (buffers.empty()) return;
  const std::vector<Fingerprint> now = fingerprints_of(buffers);
  std::vector<Fingerprint> written(now.size());
  for (std::size_t i = 0; i < now.size(); ++i)
    written[i].low = now[i] != own_.buffers[i];
  const std::vector<Fingerprint> flags = gather_lists(*group_, written);
  own_.buffers = now;
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
    accuse(buffers_differ(*find_difference(*group_, shared)));
  if (!own.empty())
    add("statistics of own samples", Expected::kEither,
        gather(*group_, total_of(own)));
}

void ConsistencyReport::Watch::compare_random_numbers() {
  add("random number generator", Expected::kEither,
      gather(*group_, fingerprint_of_random_numbers()));
}

void ConsistencyReport::Watch::keep_heads_of_gradients() {
  reduced_heads_.clear();
  for (const std::string& name : options_.show) {
    const at::Tensor gradient = tensor_named(trained_, name).grad();
    reduced_heads_.push_back(gradient.defined()
                                 ? gradient.detach().to_dense().clone()
                                 : at::Tensor());
  }
}

std::string ConsistencyReport::Watch::shown_values() {
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
    show(name + ", gradient of each rank",
         own_.gradients->head(static_cast<std::size_t>(at - trained_.begin())));
    show(name + ", gradient, reduced",
         i < reduced_heads_.size() ? reduced_heads_[i] : at::Tensor());
  }
  return table_of(table, step_);
}

void ConsistencyReport::Watch::end_step() {
  const bool accused = verdict_ && verdict_->step == step_;
  if (accused || step_ == options_.steps)
    text_ += table_of(rows_, group_->size()) + note_on_wrapping();
  if (accused) text_ += text_of(*verdict_) + "\n";
  own_.data = own_.outputs = own_.loss = Fingerprint();
  own_.outputs_are_finite = own_.loss_is_finite = true;
  pass_compared_ = false;
  reduced_heads_.clear();
  own_.gradients->clear();
  ++step_;
  if (!done()) return;
  own_.gradients.reset();
  if (!verdict_)
    text_ += "verdict: the ranks are consistent, as far as step " +
             std::to_string(options_.steps) + "\n";
}

// A note where initial weights differed before wrapping made them equal.
std::string ConsistencyReport::Watch::note_on_wrapping() const {
  if (step_ == 0 || !began_apart_ || verdict_) return "";
  return "initial weights differed: wrapping the module copied rank 0's to "
         "all ranks\n";
}

}  // namespace lockstep
