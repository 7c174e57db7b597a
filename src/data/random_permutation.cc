#include "src/data/random_permutation.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::vector<std::int64_t> ascending(std::int64_t count) {
  if (count < 0)
    throw InvalidArgument(fmt::format(
        "cannot shuffle {} indices: the count must not be negative", count));
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  return indices;
}

// Gives std::mt19937 the state that the authors' init_by_array computes from a
// key. Python seeds with the number's 32-bit words, lowest first.
class ArraySeed {
 public:
  // NOLINTNEXTLINE(readability-identifier-naming): the standard's name
  using result_type = std::uint_least32_t;

  explicit ArraySeed(std::uint64_t seed)
      : key_{static_cast<std::uint32_t>(seed),
             static_cast<std::uint32_t>(seed >> 32)},
        key_words_((seed >> 32) != 0 ? 2 : 1) {}

  template <class Iterator>
  void generate(Iterator begin, Iterator end) const {
    const auto size = static_cast<std::uint32_t>(end - begin);
    std::mt19937::result_type word = 19650218;
    for (std::uint32_t i = 0; i < size; ++i) {
      begin[i] = static_cast<std::uint32_t>(word);
      word = next_word(begin[i], 1812433253u) + i + 1;
    }
    std::uint32_t i = 1;
    const auto advance = [&] {
      if (++i < size) return;
      begin[0] = begin[size - 1];
      i = 1;
    };
    std::uint32_t j = 0;
    for (std::uint32_t k = std::max(size, key_words_); k > 0; --k) {
      begin[i] = (static_cast<std::uint32_t>(begin[i]) ^
                  next_word(begin[i - 1], 1664525u)) +
                 key_[j] + j;
      begin[i] = static_cast<std::uint32_t>(begin[i]);
      j = (j + 1) % key_words_;
      advance();
    }
    for (std::uint32_t k = size - 1; k > 0; --k) {
      begin[i] = (static_cast<std::uint32_t>(begin[i]) ^
                  next_word(begin[i - 1], 1566083941u)) -
                 i;
      begin[i] = static_cast<std::uint32_t>(begin[i]);
      advance();
    }
    begin[0] = 0x80000000u;
  }

 private:
  static std::uint32_t next_word(std::uint_fast32_t word,
                                 std::uint32_t factor) {
    const auto low = static_cast<std::uint32_t>(word);
    return factor * (low ^ (low >> 30));
  }

  std::uint32_t key_[2];
  std::uint32_t key_words_;
};

// A number below `end`, which is positive, as Python draws it: as many bits as
// `end` has, drawn again until they are below it.
std::uint32_t draw_below(std::mt19937& twister, std::uint32_t end) {
  const int surplus_bits = std::countl_zero(end);
  std::uint32_t drawn = 0;
  do {
    drawn = static_cast<std::uint32_t>(twister()) >> surplus_bits;
  } while (drawn >= end);
  return drawn;
}

// From here on PyTorch draws 64 bits per index, because the remainder of 32
// bits would favour small numbers, and shuffles from the inside out.
constexpr std::size_t kLongPermutation =
    std::numeric_limits<std::uint32_t>::max() / 20;

void shuffle_long(std::vector<std::int64_t>& indices, std::mt19937& twister) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::uint64_t upper_half = twister();
    const std::uint64_t drawn = upper_half << 32 | twister();
    const std::size_t other = drawn % (i + 1);
    indices[i] = indices[other];
    indices[other] = static_cast<std::int64_t>(i);
  }
}

}  // namespace

std::vector<std::int64_t> random_permutation(std::int64_t count,
                                             std::uint64_t seed) {
  std::vector<std::int64_t> indices = ascending(count);
  std::mt19937 twister(static_cast<std::uint32_t>(seed));
  if (indices.size() >= kLongPermutation) {
    shuffle_long(indices, twister);
    return indices;
  }
  for (std::size_t i = 0; i + 1 < indices.size(); ++i)
    std::swap(indices[i], indices[i + twister() % (indices.size() - i)]);
  return indices;
}

std::vector<std::int64_t> python_permutation(std::int64_t count,
                                             std::uint64_t seed) {
  if (count > std::numeric_limits<std::uint32_t>::max())
    throw InvalidArgument(fmt::format(
        "cannot shuffle {} indices as Python does: at most 2^32 - 1", count));
  std::vector<std::int64_t> indices = ascending(count);
  ArraySeed words(seed);
  std::mt19937 twister(words);
  for (std::size_t i = indices.size(); i-- > 1;)
    std::swap(indices[i],
              indices[draw_below(twister, static_cast<std::uint32_t>(i + 1))]);
  return indices;
}

}  // namespace lockstep
