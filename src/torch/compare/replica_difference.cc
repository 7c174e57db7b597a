// Three rounds, of which most calls need only the first: one hash of
// everything; one hash per tensor; and for the first tensor that differs one
// hash per block, with the elements of blocks that differ.
#include "src/torch/compare/replica_difference.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <sstream>

#include "lockstep/base/buffer.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/base/report_text.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

constexpr std::int64_t kBlockElements = std::int64_t{1} << 16;

// A rank with the most common fingerprint; the lowest such rank in a tie.
int most_common(std::span<const Fingerprint> by_rank) {
  const auto owners = [&](const Fingerprint& one) {
    return std::ranges::count(by_rank, one);
  };
  int best = 0;
  for (int rank = 1; rank < std::ssize(by_rank); ++rank)
    if (owners(by_rank[static_cast<std::size_t>(rank)]) >
        owners(by_rank[static_cast<std::size_t>(best)]))
      best = rank;
  return best;
}

// One tensor on all ranks.
class Comparison {
 public:
  Comparison(ProcessGroup& group, const at::Tensor& tensor, int reference)
      : group_(group),
        own_(resolved(tensor.detach().to(at::kCPU).to_dense()).flatten()),
        reference_(reference) {}

  void fill(ReplicaDifference& difference) {
    const std::int64_t blocks =
        (own_.numel() + kBlockElements - 1) / kBlockElements;
    std::vector<Fingerprint> own;
    for (std::int64_t i = 0; i < blocks; ++i)
      own.push_back(fingerprint_of(block(i)));
    const std::vector<Fingerprint> all = gather_lists(group_, own);
    for (std::size_t i = 0; i < own.size(); ++i) {
      bool same = true;
      for (std::size_t at = i; at < all.size(); at += own.size())
        same = same && all[at] == all[i];
      if (!same) compare_block(static_cast<std::int64_t>(i), difference);
    }
  }

 private:
  at::Tensor block(std::int64_t i) const {
    const std::int64_t begin = i * kBlockElements;
    return own_.narrow(0, begin,
                       std::min(kBlockElements, own_.numel() - begin));
  }

  void compare_block(std::int64_t i, ReplicaDifference& difference) {
    const at::Tensor mine = block(i).contiguous();
    const at::Tensor all =
        at::empty({group_.size(), mine.numel()}, mine.options());
    group_
        .all_gather(bytes_of(mine), bytes_of(all),
                    {.label = "elements that differ"})
        .wait();
    for (std::int64_t e = 0; e < mine.numel(); ++e) {
      if (all_have_the_same(all, e)) continue;
      if (difference.elements++ == 0)
        describe_first(all, e, i * kBlockElements + e, difference);
    }
    const at::Tensor numbers = all.to(at::kDouble);
    const auto largest =
        (numbers - numbers[reference_]).abs().max().item<double>();
    if (!std::isnan(difference.largest) && !(largest <= difference.largest))
      difference.largest = largest;
  }

  static Buffer bytes_of(const at::Tensor& tensor) {
    return view_bytes(
        std::span(static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()));
  }

  // Rank `rank`'s `element` in the gathered `all`.
  static const std::byte* place(const at::Tensor& all, int rank,
                                std::int64_t element) {
    const auto* begin = static_cast<const std::byte*>(all.const_data_ptr());
    return begin + (rank * all.size(1) + element) *
                       static_cast<std::int64_t>(all.itemsize());
  }

  bool all_have_the_same(const at::Tensor& all, std::int64_t element) const {
    for (int rank = 1; rank < group_.size(); ++rank)
      if (std::memcmp(place(all, 0, element), place(all, rank, element),
                      all.itemsize()) != 0)
        return false;
    return true;
  }

  void describe_first(const at::Tensor& all, std::int64_t in_block,
                      std::int64_t element,
                      ReplicaDifference& difference) const {
    difference.first_element = element;
    for (int rank = 0; rank < group_.size(); ++rank)
      difference.values.push_back(all[rank][in_block].item<double>());
    // The first rank that differs from the reference.
    for (const int rank : difference.ranks) {
      int bits = 0;
      for (std::size_t i = 0; i < all.itemsize(); ++i)
        bits += std::popcount(
            std::to_integer<unsigned>(place(all, rank, in_block)[i] ^
                                      place(all, reference_, in_block)[i]));
      if (bits == 0) continue;
      difference.differing_bits = bits;
      return;
    }
  }

  ProcessGroup& group_;
  at::Tensor own_;
  int reference_;
};

std::vector<std::int64_t> index_of(std::int64_t element,
                                   at::IntArrayRef sizes) {
  std::vector<std::int64_t> index(sizes.size());
  for (std::size_t d = sizes.size(); d-- > 0;) {
    index[d] = element % sizes[d];
    element /= sizes[d];
  }
  return index;
}

// Compares the properties other than elements, which all ranks must share.
bool have_the_same_form(ProcessGroup& group, const at::Tensor& tensor) {
  Fingerprint form;
  if (tensor.defined()) {
    std::vector<std::int64_t> numbers = tensor.sizes().vec();
    numbers.push_back(static_cast<std::int64_t>(tensor.scalar_type()));
    form = fingerprint_of(std::as_bytes(std::span(numbers)));
  }
  const std::vector<Fingerprint> all = gather(group, form);
  return tensor.defined() && std::ranges::count(all, form) == std::ssize(all);
}

std::string value(double number) {
  std::ostringstream text;
  text.precision(9);
  text << number;
  return text.str();
}

// The ranks with each value of the first element, the most common value last.
std::string values_by_rank(const ReplicaDifference& difference) {
  // By bits, since NaN is not equal to itself.
  std::map<std::uint64_t, std::vector<int>> ranks_with;
  for (std::size_t rank = 0; rank < difference.values.size(); ++rank)
    ranks_with[std::bit_cast<std::uint64_t>(difference.values[rank])].push_back(
        static_cast<int>(rank));
  std::vector<std::vector<int>> classes;
  for (auto& [bits, ranks] : ranks_with) classes.push_back(std::move(ranks));
  std::ranges::sort(classes, [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() < b.size() : a > b;
  });
  std::string text;
  for (const std::vector<int>& ranks : classes)
    text += (text.empty() ? "" : " and ") +
            value(difference.values[static_cast<std::size_t>(ranks[0])]) +
            " on " + name_ranks(ranks);
  return text;
}

}  // namespace

std::vector<Fingerprint> gather(ProcessGroup& group, const Fingerprint& own) {
  return gather_lists(group, std::span(&own, 1));
}

std::vector<Fingerprint> gather_lists(ProcessGroup& group,
                                      std::span<const Fingerprint> own) {
  std::vector<Fingerprint> all(own.size() *
                               static_cast<std::size_t>(group.size()));
  group
      .all_gather(view_bytes(std::as_bytes(own)),
                  view_bytes(std::as_bytes(std::span(all))),
                  {.label = "fingerprints"})
      .wait();
  return all;
}

std::vector<Fingerprint> fingerprints_of(const NamedTensorList& tensors) {
  std::vector<Fingerprint> fingerprints;
  for (const auto& [name, tensor] : tensors)
    fingerprints.push_back(fingerprint_of(tensor));
  return fingerprints;
}

std::optional<ReplicaDifference> find_difference(
    ProcessGroup& group, const NamedTensorList& tensors) {
  return find_difference(group, tensors, fingerprints_of(tensors));
}

std::optional<ReplicaDifference> find_difference(
    ProcessGroup& group, const NamedTensorList& tensors,
    const std::vector<Fingerprint>& fingerprints) {
  const auto totals = gather(group, fingerprint_of(std::span(fingerprints)));
  if (std::ranges::count(totals, totals[0]) == std::ssize(totals))
    return std::nullopt;
  const std::vector<Fingerprint> all = gather_lists(group, fingerprints);
  ReplicaDifference difference;
  std::size_t first = fingerprints.size();
  std::vector<Fingerprint> of_first;
  for (std::size_t i = 0; i < fingerprints.size(); ++i) {
    std::vector<Fingerprint> by_rank;
    for (std::size_t at = i; at < all.size(); at += fingerprints.size())
      by_rank.push_back(all[at]);
    if (std::ranges::count(by_rank, by_rank[0]) == std::ssize(by_rank))
      continue;
    if (first < fingerprints.size()) {
      ++difference.more_tensors;
      continue;
    }
    first = i;
    of_first = std::move(by_rank);
  }
  const int reference = most_common(of_first);
  for (int rank = 0; rank < group.size(); ++rank)
    if (of_first[static_cast<std::size_t>(rank)] !=
        of_first[static_cast<std::size_t>(reference)])
      difference.ranks.push_back(rank);
  difference.ranks_are_fewer = 2 * std::ssize(difference.ranks) < group.size();
  const auto& [name, tensor] = tensors[first];
  difference.tensor = name;
  difference.comparable = have_the_same_form(group, tensor);
  if (!difference.comparable) return difference;
  // Complex numbers as pairs.
  const at::Tensor numbers = tensor.is_complex()
                                 ? at::view_as_real(resolved(tensor.detach()))
                                 : tensor;
  Comparison(group, numbers, reference).fill(difference);
  difference.index = index_of(difference.first_element, numbers.sizes());
  return difference;
}

std::string describe(const ReplicaDifference& difference) {
  std::ostringstream text;
  text << difference.tensor;
  if (!difference.comparable) {
    text << " has another shape or type, or is missing, on "
         << name_ranks(difference.ranks);
  } else {
    if (!difference.index.empty()) text << at::IntArrayRef(difference.index);
    text << " is " << values_by_rank(difference) << "; " << difference.elements
         << (difference.elements == 1 ? " element" : " elements")
         << " of the tensor "
         << (difference.elements == 1 ? "differs" : "differ") << ", by at most "
         << value(difference.largest);
  }
  if (difference.more_tensors > 0)
    text << "; " << difference.more_tensors
         << (difference.more_tensors == 1 ? " tensor more differs"
                                          : " tensors more differ");
  return text.str();
}

}  // namespace lockstep
