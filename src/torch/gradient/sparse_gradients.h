// Gradients of indices and values, as those of an Embedding with sparse(true):
// which parameters have them, and how they are averaged or added up.
//
// Whether a gradient is sparse is known once it has arrived, on one rank maybe.
// In the first pass that is reduced it travels in its bucket, as a dense one,
// while the ranks tell each other that it is none, and becomes sparse again
// after it. From then on its bucket has an empty stand-in in its place, and the
// gradient travels by itself after the buckets, by an all-gather of the ranks'
// indices and one of their values, in the order of parameters: ranks may have
// different numbers of them, or none. A dense gradient of such a parameter is
// made sparse.
//
// The result is sparse, coalesced and has the same bits on every rank.
// Communication hooks see a sparse gradient only in the first pass that brings
// one of its parameter, where it is sent as a dense one.
//
// Threads: single-threaded, as the reducer that owns it.
// Errors:  InvalidArgument naming the parameter whose gradient has another
//          shape; what ProcessGroup's operations throw.
// Source:  horovod.torch.sparse_allreduce_async; the sparse buckets of
//          PyTorch's DistributedDataParallel.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "src/torch/gradient/missing_gradients.h"

namespace lockstep {

class SparseGradients {
 public:
  explicit SparseGradients(std::vector<at::Tensor> parameters);

  // By parameter: what buckets reduce the .grad of, the parameter or its empty
  // stand-in. The memory stays where it is.
  std::span<const at::Tensor> in_buckets() const { return in_buckets_; }
  // Whether all ranks know that its gradients are sparse.
  bool is_sparse(std::size_t parameter) const {
    return dimensions_[parameter] != 0;
  }

  // Before a pass is reduced.
  void begin_pass();
  // Before the gradient of `parameter` goes into its bucket: makes it dense
  // where it is sparse and not all ranks know; returns whether it did.
  bool prepare(std::size_t parameter, const std::string& name);
  // What the other ranks are to be told of a gradient that has arrived.
  MissingGradients::Mark mark_of(std::size_t parameter) const;
  // Learns what all ranks have told.
  void learn(const MissingGradients& told);
  bool has_learnt() const { return has_learnt_; }

  enum class Result { kKept, kDropped };
  // Combines what .grad holds on all ranks of `order`, dividing sums by
  // `divisor`, but for the parameters that no rank has used. Every rank calls
  // it after the buckets of a pass. kDropped leaves this rank without.
  void reduce(ProcessGroup& order, double divisor,
              const std::function<bool(std::size_t)>& unused, Result result);
  // Makes those sparse of which the ranks have learnt in this pass; to be
  // called once .grad is what the pass was to make of it.
  void end_pass();

 private:
  at::Tensor own_part(std::size_t parameter) const;
  at::Tensor combine(std::size_t parameter, ProcessGroup& order,
                     std::span<const std::int64_t> counts,
                     double divisor) const;

  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> in_buckets_;
  std::vector<std::uint8_t> dimensions_;  // that indices have; 0: not sparse
  std::vector<std::uint8_t> made_dense_;  // the same of this rank and pass
  std::vector<std::size_t> learnt_;       // in this pass
  bool has_learnt_ = false;
};

}  // namespace lockstep
