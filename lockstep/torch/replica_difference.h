// Where the ranks' copies of a model differ: in which tensor, at which element,
// on which ranks, and by how much.
//
// Copies that are the same cost a hash and 16 bytes a rank. Only where some
// differ do more hashes travel, and then the elements of those blocks of one
// tensor whose hashes differ.
//
// Threads: every rank of the group calls these at the same point of its
//          program, with as many tensors under the same names.
// Errors:  what ProcessGroup's operations throw.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/fingerprint.h"

namespace lockstep {

using NamedTensorList = std::vector<std::pair<std::string, at::Tensor>>;

// The first tensor that differs.
struct ReplicaDifference {
  std::string tensor;             // its name
  std::int64_t more_tensors = 0;  // that differ besides
  // Those that differ from most; where as many hold one thing as another, from
  // rank 0.
  std::vector<int> ranks;
  bool ranks_are_fewer = false;  // than half, so that they may be to blame
  // False where ranks do not even have the same shape, or some have no tensor;
  // then nothing below is known.
  bool comparable = false;
  std::int64_t elements = 0;          // that differ on some rank
  std::int64_t first_element = 0;     // of them, in the order of a dense tensor
  std::vector<std::int64_t> index{};  // the same, by dimensions
  std::vector<double> values{};       // of that element, by rank
  int differing_bits = 0;             // of that element
  double largest = 0;  // difference of an element; NaN where one is
};

// Every rank's `own`, in rank order.
std::vector<Fingerprint> gather(ProcessGroup& group, const Fingerprint& own);
// The same of lists that are as long on every rank, one after another.
std::vector<Fingerprint> gather_lists(ProcessGroup& group,
                                      std::span<const Fingerprint> own);

std::vector<Fingerprint> fingerprints_of(const NamedTensorList& tensors);

// Nothing where all ranks hold the same bits in all of `tensors`.
std::optional<ReplicaDifference> find_difference(
    ProcessGroup& group, const NamedTensorList& tensors);
// The same where the fingerprints of `tensors` are known already.
std::optional<ReplicaDifference> find_difference(
    ProcessGroup& group, const NamedTensorList& tensors,
    const std::vector<Fingerprint>& fingerprints);

// "rank 2", "ranks 0, 1 and 3"; of many, the first eight.
std::string names_of(const std::vector<int>& ranks);

// `weight[3, 17] is 0.25 on rank 1 and 0.5 on ranks 0 and 2; 1 element of the
// tensor differs, by at most 0.25`, in one line.
std::string describe(const ReplicaDifference& difference);

}  // namespace lockstep
