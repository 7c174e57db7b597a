#include "lockstep/torch/tensor_loader.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/openmp_threads.h"
#include "src/data/loader_pass.h"
#include "src/torch/device/vector_functions.h"

namespace lockstep {
namespace {

using loader_internal::BatchContents;
using loader_internal::BatchFiller;
using loader_internal::PassWorkers;

struct TensorContents final : BatchContents {
  TensorSamples samples;
  std::vector<at::Tensor> batch;
};

// A worker beside the training must not spread over its cores.
void compute_alone() {
  static thread_local const bool once = [] {
    at::get_num_threads();  // else LibTorch's first use sets the numbers again
    set_openmp_threads(1);
    set_mkl_threads(1);
    return true;
  }();
  static_cast<void>(once);
}

void check_place(const at::Tensor& field, const std::string& whose) {
  if (field.defined() && !field.device().is_cpu())
    throw InvalidArgument(
        "a tensor of " + whose + " is on " + field.device().str() +
        ": a TensorLoader's workers know neither the consumer's device nor its "
        "stream\n"
        "  next:    read samples on the CPU, and move the batch to the device");
}

// Whether `field` lies in the memory of a sample, which may be the data set's:
// the consumer may change a batch in place.
bool is_of_a_sample(const at::Tensor& field, const TensorSamples& samples) {
  if (!field.defined() || !field.has_storage()) return false;
  for (const auto& sample : samples)
    for (const at::Tensor& one : sample)
      if (one.defined() && one.has_storage() && one.is_alias_of(field))
        return true;
  return false;
}

class TensorFiller final : public BatchFiller {
 public:
  TensorFiller(const TensorSource& source, const TensorLoaderOptions& options)
      : source_(source), epoch_(options.epoch), collate_(options.collate) {}

  std::int64_t size() const override { return source_.size(); }
  std::unique_ptr<BatchContents> make() const override {
    return std::make_unique<TensorContents>();
  }
  void open(BatchContents& contents, std::int64_t count) const override {
    auto& batch = static_cast<TensorContents&>(contents);
    batch.samples.clear();
    batch.samples.resize(static_cast<std::size_t>(count));
    batch.batch.clear();
  }
  void read(BatchContents& contents, std::int64_t place,
            std::int64_t index) const override {
    compute_alone();
    const at::NoGradGuard no_grad;
    auto fields = source_.read(index, epoch_);
    for (const at::Tensor& field : fields)
      check_place(field, "sample " + std::to_string(index));
    static_cast<TensorContents&>(contents)
        .samples[static_cast<std::size_t>(place)] = std::move(fields);
  }
  void complete(BatchContents& contents) const override {
    const at::NoGradGuard no_grad;
    auto& batch = static_cast<TensorContents&>(contents);
    batch.batch = collate_(batch.samples);
    for (at::Tensor& field : batch.batch) {
      check_place(field, "a batch that .collate made");
      if (is_of_a_sample(field, batch.samples)) field = field.clone();
    }
    batch.samples.clear();
  }

 private:
  const TensorSource& source_;
  const std::uint64_t epoch_;
  const std::function<std::vector<at::Tensor>(const TensorSamples&)> collate_;
};

std::string describe(const at::Tensor& tensor) {
  return c10::str(tensor.layout() == at::kStrided ? "" : "sparse ",
                  tensor.scalar_type(), " of the shape ", tensor.sizes());
}

[[noreturn]] void refuse(std::size_t sample, const std::string& problem) {
  throw InvalidArgument("cannot make a batch: its sample " +
                        std::to_string(sample) + " (counted from 0) " +
                        problem);
}

void check_sample(const TensorSamples& samples, std::size_t sample) {
  const auto& first = samples.front();
  const auto& fields = samples[sample];
  if (fields.size() != first.size())
    refuse(sample, "has " + std::to_string(fields.size()) +
                       " fields, and its first one has " +
                       std::to_string(first.size()));
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (!fields[i].defined())
      refuse(sample, "has an undefined tensor as field " + std::to_string(i));
    if (fields[i].scalar_type() != first[i].scalar_type() ||
        fields[i].layout() != first[i].layout() ||
        fields[i].sizes() != first[i].sizes())
      refuse(sample, "has as field " + std::to_string(i) + " a " +
                         describe(fields[i]) + ", and its first one a " +
                         describe(first[i]) +
                         "\n  next:    give the loader a .collate that pads "
                         "them or joins them otherwise");
  }
}

}  // namespace

std::vector<at::Tensor> stack_samples(const TensorSamples& samples) {
  if (samples.empty())
    throw InvalidArgument("cannot make a batch of no samples");
  for (std::size_t i = 0; i < samples.size(); ++i) check_sample(samples, i);
  std::vector<at::Tensor> batch;
  for (std::size_t field = 0; field < samples.front().size(); ++field) {
    std::vector<at::Tensor> column;
    column.reserve(samples.size());
    for (const auto& sample : samples) column.push_back(sample[field]);
    batch.push_back(at::stack(column));
  }
  return batch;
}

TensorDataset::TensorDataset(std::vector<at::Tensor> tensors)
    : tensors_(std::move(tensors)) {
  if (tensors_.empty())
    throw InvalidArgument("a TensorDataset needs a tensor at least");
  for (const at::Tensor& tensor : tensors_) {
    if (!tensor.defined() || tensor.dim() == 0)
      throw InvalidArgument(
          "a tensor of a TensorDataset has no dimension, so it has no samples"
          "\n  next:    give it tensors whose rows are the samples");
    if (tensor.size(0) != tensors_[0].size(0))
      throw InvalidArgument(
          "a tensor of a TensorDataset has " + std::to_string(tensor.size(0)) +
          " rows, and the first one " + std::to_string(tensors_[0].size(0)) +
          "\n  next:    give it tensors with a row per sample");
  }
}

std::vector<at::Tensor> TensorDataset::read(std::int64_t index,
                                            std::uint64_t /*epoch*/) const {
  std::vector<at::Tensor> fields;
  fields.reserve(tensors_.size());
  for (const at::Tensor& tensor : tensors_)
    fields.push_back(tensor.select(0, index));
  return fields;
}

TensorLoader::TensorLoader(const TensorSource& source,
                           std::vector<std::int64_t> indices,
                           const TensorLoaderOptions& options) {
  if (!options.collate)
    throw InvalidArgument("a TensorLoader needs a .collate function");
  use_vector_functions_once();
  workers_ = std::make_unique<PassWorkers>(
      std::make_unique<TensorFiller>(source, options), std::move(indices),
      loader_internal::pass_options(options));
}

TensorLoader::~TensorLoader() = default;

std::optional<std::vector<at::Tensor>> TensorLoader::next(Deadline deadline) {
  loader_internal::Pass& pass = workers_->pass();
  auto buffer = pass.next(deadline);
  if (buffer == nullptr) return std::nullopt;
  auto batch = std::move(static_cast<TensorContents&>(*buffer->contents).batch);
  pass.recycle(std::move(buffer));
  return batch;
}

std::int64_t TensorLoader::batch_count() const {
  return workers_->pass().batch_count();
}

std::span<const BrokenSample> TensorLoader::broken() const {
  return workers_->pass().broken();
}

std::chrono::nanoseconds TensorLoader::waited() const {
  return workers_->pass().waited();
}

}  // namespace lockstep
