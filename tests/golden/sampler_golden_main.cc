// Answers sampler_golden.py: reads one question per line and writes one line
// for it, "COUNT CHECKSUM FIRST…": how many indices, the CRC-32 of them as
// little-endian int64, and the first few.
//
//   sampler LENGTH WORLD_SIZE RANK SHUFFLE SEED EPOCH DROP_LAST
//   permutation COUNT SEED
//   partition LENGTH SEED PART SIZE…
//   weighted COUNT SEED WEIGHT…

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/data/sample_order.h"
#include "src/data/random_permutation.h"

namespace {

using Indices = std::vector<std::int64_t>;

Indices answer_sampler(std::istream& question) {
  std::int64_t length = 0;
  lockstep::SamplerOptions options;
  question >> length >> options.world_size >> options.rank >> options.shuffle >>
      options.seed >> options.epoch >> options.drop_last;
  return lockstep::sampler_sequence(length, options);
}

Indices answer_permutation(std::istream& question) {
  std::int64_t count = 0;
  std::uint64_t seed = 0;
  question >> count >> seed;
  return lockstep::random_permutation(count, seed);
}

Indices answer_partition(std::istream& question) {
  std::int64_t length = 0;
  std::size_t part = 0;
  lockstep::PartitionOptions options{.sizes = {}};
  question >> length >> options.seed >> part;
  for (double size = 0; question >> size;) options.sizes.push_back(size);
  const lockstep::DataPartitioner partitioner(length, options);
  const auto indices = partitioner.use(part);
  return {indices.begin(), indices.end()};
}

Indices answer_weighted(std::istream& question) {
  lockstep::WeightedOptions options;
  question >> options.count >> options.seed;
  std::vector<double> weights;
  for (double weight = 0; question >> weight;) weights.push_back(weight);
  return lockstep::weighted_order(weights, options);
}

Indices answer(const std::string& line) {
  std::istringstream question(line);
  std::string kind;
  question >> kind;
  if (kind == "sampler") return answer_sampler(question);
  if (kind == "permutation") return answer_permutation(question);
  if (kind == "weighted") return answer_weighted(question);
  return answer_partition(question);
}

unsigned long checksum(const Indices& indices) {
  return crc32_z(0, reinterpret_cast<const Bytef*>(indices.data()),
                 indices.size() * sizeof(std::int64_t));
}

}  // namespace

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) {
      const Indices indices = answer(line);
      std::cout << indices.size() << ' ' << checksum(indices);
      for (std::size_t i = 0; i < indices.size() && i < 5; ++i)
        std::cout << ' ' << indices[i];
      std::cout << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
