// Splits a data set into parts by fractions: the DataPartitioner of PyTorch's
// tutorial "Writing Distributed Applications", index for index.
//
// Threads: immutable once made; share it freely.
// Errors:  InvalidArgument for fractions that are no numbers from 0 to 1 or
// come
//          to more than 1, and for a part that there is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

struct PartitionOptions {
  // The share of each part. What they leave over belongs to no part.
  std::vector<double> sizes = {0.7, 0.2, 0.1};
  std::uint64_t seed = 1234;
};

class DataPartitioner {
 public:
  // Divides `length` samples. Each part's size is rounded down.
  explicit DataPartitioner(std::int64_t length,
                           const PartitionOptions& options = {});

  // The indices of a part, shuffled; valid as long as this object.
  std::span<const std::int64_t> use(std::size_t part) const;

  // The number of parts.
  std::size_t size() const { return ends_.size(); }

 private:
  std::vector<std::int64_t> indices_;
  std::vector<std::size_t> ends_;  // of each part, in indices_
};

}  // namespace lockstep
