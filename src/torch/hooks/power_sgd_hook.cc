#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/comm_hooks.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/torch/optim/gradient_norm.h"

namespace lockstep {
namespace {

void check(const PowerSgdOptions& options) {
  const auto refuse = [](const std::string& why) {
    throw InvalidArgument("PowerSgdHook: " + why);
  };
  if (options.matrix_approximation_rank < 1)
    refuse(c10::str("matrix_approximation_rank is ",
                    options.matrix_approximation_rank,
                    "; it must be at least 1"));
  if ((options.use_error_feedback || options.warm_start) &&
      options.start_iteration < 2)
    refuse(c10::str("start_iteration is ", options.start_iteration,
                    "; it must be at least 2 with error feedback or warm "
                    "start, since buckets change after the first pass"));
  if (options.start_iteration < 0) refuse("start_iteration is negative");
  if (!(options.min_compression_rate > 0))
    refuse("min_compression_rate must be above 0");
  if (!(options.orthogonalization_epsilon >= 0))
    refuse("orthogonalization_epsilon is negative");
}

// As numpy.random.RandomState.randint(1'000'000'000) draws, so that runs can be
// compared with PyTorch's.
std::uint32_t next_seed(std::mt19937& generator) {
  constexpr std::uint32_t kEnd = 1'000'000'000, kMask = (1U << 30) - 1;
  while (true)
    if (const std::uint32_t drawn = generator() & kMask; drawn < kEnd)
      return drawn;
}

double dot(const double* a, const double* b, std::int64_t rows,
           std::int64_t columns) {
  double sum = 0;
  for (std::int64_t row = 0; row < rows; ++row)
    sum += a[row * columns] * b[row * columns];
  return sum;
}

// Makes the columns orthonormal by the Gram-Schmidt process. In plain loops,
// since all ranks must compute the same bits, whatever their number of threads.
void orthonormalize_on_cpu(const at::Tensor& matrix, double epsilon) {
  const at::Tensor wide = matrix.to(at::kDouble);
  const std::int64_t rows = wide.size(0), columns = wide.size(1);
  auto* const first = wide.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < columns; ++i) {
    double* const column = first + i;
    const double length =
        std::sqrt(dot(column, column, rows, columns)) + epsilon;
    for (std::int64_t row = 0; length > 0 && row < rows; ++row)
      column[row * columns] /= length;
    for (std::int64_t j = i + 1; j < columns; ++j) {
      double* const other = first + j;
      const double along = dot(column, other, rows, columns);
      for (std::int64_t row = 0; row < rows; ++row)
        other[row * columns] -= along * column[row * columns];
    }
  }
  matrix.copy_(wide);
}

// The same on a GPU, without the host waiting for it; a column of zeros stays
// zero.
void orthonormalize_on_gpu(const at::Tensor& matrix, double epsilon) {
  const at::Tensor wide = matrix.to(at::kDouble);
  const std::int64_t columns = wide.size(1);
  for (std::int64_t i = 0; i < columns; ++i) {
    const at::Tensor column = wide.narrow(1, i, 1);
    const at::Tensor length = column.norm() + epsilon;
    column.div_(length.masked_fill(length == 0, 1));
    if (i + 1 == columns) break;
    const at::Tensor others = wide.narrow(1, i + 1, columns - i - 1);
    others.sub_(column * (column * others).sum(0, /*keepdim=*/true));
  }
  matrix.copy_(wide);
}

void orthonormalize(const at::Tensor& matrix, double epsilon) {
  if (matrix.is_cpu())
    orthonormalize_on_cpu(matrix, epsilon);
  else
    orthonormalize_on_gpu(matrix, epsilon);
}

// Memory in which the group's collectives are fastest.
at::Tensor allocate(std::int64_t elements, const GradBucket& bucket) {
  if (!bucket.buffer.is_cpu())
    return at::empty({elements}, bucket.buffer.options());
  const auto memory = bucket.group->allocate(
      static_cast<std::size_t>(elements * bucket.buffer.element_size()));
  return at::from_blob(
      memory.get(), {elements}, [memory](void*) {}, bucket.buffer.options());
}

bool is_finite(const at::Tensor& tensor) {
  return std::isfinite(sum_of_squares(tensor));
}

bool are_same(const std::vector<at::Tensor>& a,
              const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& x, const at::Tensor& y) {
    return x.is_same(y);
  });
}

}  // namespace

// One bucket in one pass.
class PowerSgdHook::Round {
 public:
  Round(const GradBucket& bucket, const PowerSgdOptions& options);

  std::int64_t q_elements() const { return q_elements_; }
  std::int64_t bytes_sent() const {
    return (p_elements_ + q_elements_ + plain_elements_) *
           bucket_.buffer.element_size();
  }
  const GradBucket& bucket() const { return bucket_; }

  void keep_input() { input_ = bucket_.buffer.clone(); }
  // The part of the input that was not reduced.
  at::Tensor error() const { return input_ - bucket_.buffer; }

  // `memory` has q_elements() elements; each matrix gets its part.
  void set_q(const at::Tensor& memory);
  void fill_q(const at::Generator& generator);
  bool has_dead_columns() const;
  void orthonormalize_q(double epsilon);

  Work average_p_and_the_rest();
  // Returns two sums of squares: of the input, and of its part that P misses.
  std::pair<double, double> compute_q(double epsilon, bool measures);
  Work average_q();
  void decompress();

 private:
  struct Factors {
    at::Tensor matrix, p, q;  // views
  };

  void add_matrix(const at::Tensor& gradient, std::int64_t rank);
  void add_plain(const at::Tensor& gradient);

  GradBucket bucket_;
  std::vector<Factors> factors_;
  std::int64_t p_elements_ = 0, q_elements_ = 0, plain_elements_ = 0;
  at::Tensor p_, q_;  // of all matrices
  at::Tensor input_;  // with error feedback
  struct Range {
    std::int64_t begin, count;
  };
  std::vector<Range> plain_;  // uncompressed ranges of the buffer
};

PowerSgdHook::Round::Round(const GradBucket& bucket,
                           const PowerSgdOptions& options)
    : bucket_(bucket) {
  for (const at::Tensor& gradient : bucket_.gradients) {
    if (gradient.numel() == 0) continue;
    const std::int64_t rows = gradient.dim() > 0 ? gradient.size(0) : 1;
    const std::int64_t columns = gradient.numel() / rows;
    const std::int64_t rank =
        std::min({rows, columns, options.matrix_approximation_rank});
    const bool saves = static_cast<double>((rows + columns) * rank) *
                           options.min_compression_rate <
                       static_cast<double>(rows * columns);
    if (saves && gradient.dim() > 1 && gradient.stride(0) == columns)
      add_matrix(gradient, rank);
    else
      add_plain(gradient);
  }
  p_ = allocate(p_elements_, bucket_);
  std::int64_t begin = 0;
  for (auto& [matrix, p, q] : factors_) {
    const std::int64_t rank = p.size(1);
    p = p_.narrow(0, begin, matrix.size(0) * rank).view({-1, rank});
    begin += p.numel();
  }
}

// Until the memory is set, factors are only shapes.
void PowerSgdHook::Round::add_matrix(const at::Tensor& gradient,
                                     std::int64_t rank) {
  const std::int64_t rows = gradient.size(0);
  const std::int64_t columns = gradient.numel() / rows;
  const auto shape = [&](std::int64_t length) {
    return at::empty({length, rank}, at::kMeta);
  };
  factors_.push_back({gradient.as_strided({rows, columns}, {columns, 1}),
                      shape(rows), shape(columns)});
  p_elements_ += rows * rank;
  q_elements_ += columns * rank;
}

void PowerSgdHook::Round::add_plain(const at::Tensor& gradient) {
  const std::int64_t begin =
      gradient.storage_offset() - bucket_.buffer.storage_offset();
  if (!plain_.empty() && plain_.back().begin + plain_.back().count == begin)
    plain_.back().count += gradient.numel();
  else
    plain_.push_back({begin, gradient.numel()});
  plain_elements_ += gradient.numel();
}

void PowerSgdHook::Round::set_q(const at::Tensor& memory) {
  q_ = memory;
  std::int64_t begin = 0;
  for (auto& [matrix, p, q] : factors_) {
    const std::int64_t rank = p.size(1);
    q = q_.narrow(0, begin, matrix.size(1) * rank).view({-1, rank});
    begin += q.numel();
  }
}

void PowerSgdHook::Round::fill_q(const at::Generator& generator) {
  for (const auto& [matrix, p, q] : factors_)
    q.copy_(at::randn(q.sizes(), generator, q.options().device(at::kCPU)));
}

// From a column of zeros no pass would ever find a direction again, and a value
// that is not finite stays so. Q is the same on all ranks, so the result is
// too.
bool PowerSgdHook::Round::has_dead_columns() const {
  std::vector<at::Tensor> squares;  // of columns
  for (const auto& [matrix, p, q] : factors_)
    squares.push_back(q.to(at::kDouble).square().sum(0));
  if (squares.empty()) return false;
  const at::Tensor all = at::cat(squares).cpu();  // one wait for a GPU
  return !(all.isfinite() & (all != 0)).all().item<bool>();
}

void PowerSgdHook::Round::orthonormalize_q(double epsilon) {
  for (const auto& [matrix, p, q] : factors_) orthonormalize(q, epsilon);
}

Work PowerSgdHook::Round::average_p_and_the_rest() {
  std::vector<Buffer> buffers;
  for (auto& [matrix, p, q] : factors_) at::mm_out(p, matrix, q);
  for (const auto& [begin, count] : plain_)
    buffers.push_back(view(bucket_.buffer.narrow(0, begin, count)));
  buffers.push_back(view(p_));
  return bucket_.group->all_reduce(buffers, ReduceOp::kAverage,
                                   {.label = "P of PowerSGD"});
}

std::pair<double, double> PowerSgdHook::Round::compute_q(double epsilon,
                                                         bool measures) {
  double squares = 0, seen = 0;
  for (auto& [matrix, p, q] : factors_) {
    orthonormalize(p, epsilon);
    at::mm_out(q, matrix.t(), p);
    if (!measures) continue;
    squares += sum_of_squares(matrix);
    seen += sum_of_squares(q);
  }
  return {squares, std::max(squares - seen, 0.0)};
}

Work PowerSgdHook::Round::average_q() {
  return bucket_.group->all_reduce(view(q_), ReduceOp::kAverage,
                                   {.label = "Q of PowerSGD"});
}

void PowerSgdHook::Round::decompress() {
  for (auto& [matrix, p, q] : factors_) at::mm_out(matrix, p, q.t());
}

PowerSgdHook::PowerSgdHook(const PowerSgdOptions& options)
    : options_(options), seeds_(options.random_seed) {
  check(options);
}

HookProgress PowerSgdHook::start(const GradBucket& bucket) {
  const bool compresses = iteration_ >= options_.start_iteration;
  if (bucket.is_last) ++iteration_;
  if (!compresses) {
    sent_uncompressed(bucket);
    return {all_reduce_average(bucket)};
  }
  Memory& memory = memory_of(bucket);
  if (memory.error.defined()) bucket.buffer.add_(memory.error);
  const auto round = std::make_shared<Round>(bucket, options_);
  if (options_.use_error_feedback) round->keep_input();
  prepare_q(*round, memory);
  return {round->average_p_and_the_rest(),
          [this, round, &memory] { return average_q(round, memory); }};
}

// Discards the state of other parameters, such as those of an earlier plan.
PowerSgdHook::Memory& PowerSgdHook::memory_of(const GradBucket& bucket) {
  Memory& memory = memories_[bucket.index];
  if (!are_same(memory.parameters, bucket.parameters))
    memory = {.parameters = bucket.parameters, .error = {}, .q = {}};
  return memory;
}

void PowerSgdHook::prepare_q(Round& round, Memory& memory) {
  const bool starts = !memory.q.defined() || !options_.warm_start;
  if (starts) memory.q = allocate(round.q_elements(), round.bucket());
  round.set_q(memory.q);
  if (starts || round.has_dead_columns())
    round.fill_q(at::detail::createCPUGenerator(next_seed(seeds_)));
  round.orthonormalize_q(options_.orthogonalization_epsilon);
}

HookProgress PowerSgdHook::average_q(const std::shared_ptr<Round>& round,
                                     Memory& memory) {
  const auto [squares, lost] =
      round->compute_q(options_.orthogonalization_epsilon, measures());
  if (measures())
    measured(at::scalar_tensor(squares, at::kDouble),
             at::scalar_tensor(lost, at::kDouble));
  return {round->average_q(), [this, round, &memory]() -> HookProgress {
            round->decompress();
            if (options_.use_error_feedback) memory.error = round->error();
            // One overflow must not stay in all later gradients.
            if (memory.error.defined() && !is_finite(memory.error))
              memory.error.reset();
            sent(round->bucket(), round->bytes_sent());
            return {};
          }};
}

}  // namespace lockstep
