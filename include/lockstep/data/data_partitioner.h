// Splits a data set into parts by fractions: the DataPartitioner of PyTorch's
// tutorial "Writing Distributed Applications", index for index.
//
// Threads: immutable once made; share it freely.
// Errors:  InvalidArgument for fractions outside 0 … 1, for fractions whose sum
//          exceeds 1, and for a part out of range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

struct PartitionOptions {
  // The share of each part. The remainder belongs to no part.
  std::vector<double> sizes = {0.7, 0.2, 0.1};
  std::uint64_t seed = 1234;
};

class DataPartitioner {
 public:
  // Divides `length` samples. Each part's size is rounded down.
  explicit DataPartitioner(std::int64_t length,
                           const PartitionOptions& options = {});

  // The shuffled indices of a part; valid while this object lives.
  std::span<const std::int64_t> use(std::size_t part) const;

  // The number of parts.
  std::size_t size() const { return ends_.size(); }

 private:
  std::vector<std::int64_t> indices_;
  std::vector<std::size_t> ends_;  // of each part, in indices_
};

}  // namespace lockstep
