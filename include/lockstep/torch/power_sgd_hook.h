// PowerSGD: ranks exchange gradients as products of thin matrices.
//
// A gradient M of n rows and m columns is replaced by P Q', with P of n and Q
// of m rows and r columns: ranks average P = M Q, make its columns orthonormal,
// and average Q = M' P. Ranks exchange (n + m) r numbers instead of n m, in two
// rounds. They keep the error and add it to the next gradient (error feedback),
// and start from the last Q (warm start), so that repeated passes find the
// directions in which gradients are large.
//
// The hook compresses gradients of two or more dimensions whose first dimension
// is the outermost in memory, where that saves enough; it averages all others
// as they are. Error feedback keeps a second copy of the gradients in memory,
// and a third during the pass.
//
// A hook has state, so each model needs its own hook. The hook discards state
// that is of no use: when a bucket has other parameters than before, when a
// number is not finite, when a direction is all zeros.
//
// Threads: like CommHook.
// Errors:  InvalidArgument for options out of range.
// Source:  Vogels, Karimireddy, Jaggi: "PowerSGD: Practical Low-Rank Gradient
//          Compression for Distributed Optimization", NeurIPS 2019; options and
//          defaults as in PyTorch's powerSGD_hook.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "lockstep/torch/comm_hook.h"
#include "lockstep/torch/compress_hook.h"

namespace lockstep {

struct PowerSgdOptions {
  // r above: 1, 2 and 4 are usual.
  std::int64_t matrix_approximation_rank = 1;
  // The first passes, which are reduced without compression: a tenth of the
  // training is usual. At least 2 with error feedback or warm start, since
  // buckets change after the first pass.
  std::int64_t start_iteration = 1000;
  // A gradient is compressed where its size shrinks by more than this factor.
  double min_compression_rate = 2;
  bool use_error_feedback = true;
  bool warm_start = true;
  // Added to the length of columns before they are divided by it. Columns of
  // zeros stay zeros without it, too.
  double orthogonalization_epsilon = 0;
  // For the first Q, which is random, and the same on all ranks.
  std::uint32_t random_seed = 0;
};

class PowerSgdHook final : public CompressingHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options = {});

  HookProgress start(const GradBucket& bucket) override;

  // Passes so far; a resumed run restores them. The hook's state of gradients
  // is not saved, and builds up again.
  std::int64_t iteration() const { return iteration_; }
  void set_iteration(std::int64_t iteration) { iteration_ = iteration; }

 private:
  class Round;
  // State of a bucket.
  struct Memory {
    std::vector<at::Tensor> parameters;
    at::Tensor error;  // as long as its buffer
    at::Tensor q;      // of all its matrices
  };

  Memory& memory_of(const GradBucket& bucket);
  void prepare_q(Round& round, Memory& memory);
  HookProgress average_q(const std::shared_ptr<Round>& round, Memory& memory);

  PowerSgdOptions options_;
  std::mt19937 seeds_;  // of random Qs
  std::int64_t iteration_ = 0;
  std::map<std::size_t, Memory> memories_;  // by bucket
};

}  // namespace lockstep
