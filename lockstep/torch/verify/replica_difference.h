// Finds where the ranks' copies of a model differ: in which tensor, at which
// element, on which ranks, and by how much.
//
// Equal copies cost a hash and 16 bytes per rank. Only where copies differ do
// ranks exchange more hashes, and then the elements of those blocks of one
// tensor whose hashes differ.
//
// Threads: every rank of the group calls these at the same point of its
//          program, with the same number of tensors under the same names.
// Errors:  those of ProcessGroup's operations.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/torch/verify/fingerprint.h"

namespace lockstep {

using NamedTensorList = std::vector<std::pair<std::string, at::Tensor>>;

// The first tensor that differs.
struct ReplicaDifference {
  std::string tensor;             // its name
  std::int64_t more_tensors = 0;  // that also differ
  // The ranks that differ from the majority; without a majority, from rank 0.
  std::vector<int> ranks;
  bool ranks_are_fewer = false;  // than half: they are probably wrong
  // False where ranks have different shapes, or some have no tensor; then the
  // members below are not set.
  bool comparable = false;
  std::int64_t elements = 0;          // that differ on some rank
  std::int64_t first_element = 0;     // of them, in the order of a dense tensor
  std::vector<std::int64_t> index{};  // the same element, by dimensions
  std::vector<double> values{};       // of that element, by rank
  int differing_bits = 0;             // of that element
  double largest = 0;  // difference of an element; NaN where one is
};

// Gathers every rank's `own`, in rank order.
std::vector<Fingerprint> gather(ProcessGroup& group, const Fingerprint& own);
// The same for lists of the same length on every rank, concatenated.
std::vector<Fingerprint> gather_lists(ProcessGroup& group,
                                      std::span<const Fingerprint> own);

std::vector<Fingerprint> fingerprints_of(const NamedTensorList& tensors);

// Empty if all ranks hold the same bits in all of `tensors`.
std::optional<ReplicaDifference> find_difference(
    ProcessGroup& group, const NamedTensorList& tensors);
// The same, with known fingerprints of `tensors`.
std::optional<ReplicaDifference> find_difference(
    ProcessGroup& group, const NamedTensorList& tensors,
    const std::vector<Fingerprint>& fingerprints);

// "rank 2", "ranks 0, 1 and 3"; at most the first eight.
std::string names_of(const std::vector<int>& ranks);

// `weight[3, 17] is 0.25 on rank 1 and 0.5 on ranks 0 and 2; 1 element of the
// tensor differs, by at most 0.25`, in one line.
std::string describe(const ReplicaDifference& difference);

}  // namespace lockstep
