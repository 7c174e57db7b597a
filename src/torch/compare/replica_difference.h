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

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/consistency.h"
#include "src/torch/compare/fingerprint.h"

namespace lockstep {

// Gathers every rank's `own`, in rank order.
std::vector<Fingerprint> gather(ProcessGroup& group, const Fingerprint& own);
// The same for lists of the same length on every rank, concatenated.
std::vector<Fingerprint> gather_lists(ProcessGroup& group,
                                      std::span<const Fingerprint> own);

std::vector<Fingerprint> fingerprints_of(const NamedTensorList& tensors);

// As the one of consistency.h, with known fingerprints of `tensors`.
std::optional<ReplicaDifference> find_difference(
    ProcessGroup& group, const NamedTensorList& tensors,
    const std::vector<Fingerprint>& fingerprints);

}  // namespace lockstep
