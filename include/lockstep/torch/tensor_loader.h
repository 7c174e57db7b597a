// Batches of samples of any kind: tokens and targets, numbers, several tensors,
// sequences of different lengths. The loader is that of images (see loader.h):
// the same order, workers, batches ahead and broken samples.
//
//     struct Sentences final : lockstep::TensorSource {
//       std::int64_t size() const override { return std::ssize(texts); }
//       std::vector<at::Tensor> read(std::int64_t index,
//                                    std::uint64_t epoch) const override {
//         return {tokens_of(texts[index]), torch::tensor(labels[index])};
//       }
//       …
//     };
//     const auto indices = lockstep::sampler_sequence(
//         sentences.size(), {.world_size = group->size(),
//                            .rank = group->rank(),
//                            .epoch = epoch,
//                            .consumed = consumed});
//     lockstep::TensorLoader loader(sentences, indices,
//                                   {.batch_size = 16, .epoch = epoch});
//     while (const auto batch = loader.next(timeout))
//       step((*batch)[0], (*batch)[1]);
//
// A run that is resumed within an epoch passes as `consumed` the samples of the
// epoch that all ranks together have seen, and makes another loader.
//
// Threads: one consumer. Batches are the caller's own tensors, on the CPU,
// which
//          it may change in place.
// Errors:  those of Loader. InvalidArgument for samples that do not fit
//          together, naming what differs, and for tensors on a GPU.
// Source:  torch.utils.data.DataLoader, its default_collate and TensorDataset.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/data/loader.h"

namespace lockstep {

// The source of a TensorLoader's samples. What a sample has at random should
// depend on a seed, the epoch and the sample's index alone: then a run is
// reproducible whichever rank reads a sample, and in any order.
//
// Threads: every method may be called from any thread. The loader's workers
// call
//          them without autograd, and compute with one thread each.
// Errors:  an error that read() throws surfaces in TensorLoader::next().
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // The number of samples.
  virtual std::int64_t size() const = 0;

  // The fields of sample `index`, 0 … size() - 1: as many tensors for every
  // sample. The loader only reads them.
  virtual std::vector<at::Tensor> read(std::int64_t index,
                                       std::uint64_t epoch) const = 0;
};

// Samples that lie in memory: each tensor's rows are a field of the samples.
// InvalidArgument for no tensors, for one without dimensions, and for different
// numbers of rows. Keeps the tensors; nothing is copied.
class TensorDataset final : public TensorSource {
 public:
  explicit TensorDataset(std::vector<at::Tensor> tensors);

  std::int64_t size() const override { return tensors_[0].size(0); }
  std::vector<at::Tensor> read(std::int64_t index,
                               std::uint64_t epoch) const override;

 private:
  std::vector<at::Tensor> tensors_;
};

// The fields of each sample of a batch, in the order of the indices.
using TensorSamples = std::vector<std::vector<at::Tensor>>;

// Stacks each field: its tensors become one with another first dimension, the
// samples. InvalidArgument, naming the field and what differs, unless all have
// one type and one shape.
std::vector<at::Tensor> stack_samples(const TensorSamples& samples);

struct TensorLoaderOptions {
  // As in LoaderOptions.
  std::int64_t batch_size = 64;
  bool drop_last = false;
  std::uint64_t epoch = 0;
  std::int64_t prefetch = 2;
  std::int64_t workers = 1;
  std::int64_t max_broken = 0;
  // Makes a batch of its samples, of which there is at least one: pads them to
  // one length, for instance, and adds the lengths. The workers call it as they
  // call read(): several of them at a time, for different batches, in any
  // order.
  std::function<std::vector<at::Tensor>(const TensorSamples& samples)> collate =
      stack_samples;
};

class TensorLoader {
 public:
  // One pass over these samples of `source`, which must outlive the loader. The
  // workers start at once.
  TensorLoader(const TensorSource& source, std::vector<std::int64_t> indices,
               const TensorLoaderOptions& options = {});
  // Stops each worker after its current sample or batch.
  ~TensorLoader();
  TensorLoader(const TensorLoader&) = delete;
  TensorLoader& operator=(const TensorLoader&) = delete;

  // The next batch, in the order of the indices, or nothing at the end of the
  // pass. After an error every further call throws the same error.
  std::optional<std::vector<at::Tensor>> next(Deadline deadline);

  // As Loader's.
  std::int64_t batch_count() const;
  std::span<const BrokenSample> broken() const;
  std::chrono::nanoseconds waited() const;

 private:
  std::unique_ptr<loader_internal::PassWorkers> workers_;
};

}  // namespace lockstep
