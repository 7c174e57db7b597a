#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/data/sample_order.h"
#include "src/data/random_permutation.h"

namespace lockstep {
namespace {

void check_sizes(std::span<const double> sizes) {
  // The sum of fractions such as ten times 0.1 may slightly exceed 1.
  constexpr double kMostSum = 1 + 1e-9;
  for (const double size : sizes)
    if (!(size >= 0 && size <= 1))
      throw InvalidArgument(fmt::format(
          "cannot partition: a part's size is {}; it must be a fraction from 0 "
          "to 1",
          size));
  const double sum = std::accumulate(sizes.begin(), sizes.end(), 0.0);
  if (sum > kMostSum)
    throw InvalidArgument(fmt::format(
        "cannot partition: the sizes {} come to {}, which exceeds 1",
        fmt::join(sizes, ", "), sum));
}

}  // namespace

DataPartitioner::DataPartitioner(std::int64_t length,
                                 const PartitionOptions& options) {
  check_sizes(options.sizes);
  indices_ = python_permutation(length, options.seed);
  std::size_t end = 0;
  for (const double size : options.sizes) {
    end += static_cast<std::size_t>(size * static_cast<double>(length));
    end = std::min(end, indices_.size());
    ends_.push_back(end);
  }
}

std::span<const std::int64_t> DataPartitioner::use(std::size_t part) const {
  if (part >= ends_.size())
    throw InvalidArgument(
        fmt::format("there is no part {}: the data is divided into {}", part,
                    ends_.size()));
  const std::size_t begin = part == 0 ? 0 : ends_[part - 1];
  return std::span(indices_).subspan(begin, ends_[part] - begin);
}

}  // namespace lockstep
