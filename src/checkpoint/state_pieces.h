// What each rank writes of a run's state into a sharded checkpoint, and how a
// rank reads its part back.
//
// Tensors that all ranks hold are divided, so that each byte is written once: a
// rank writes one n-th of their bytes. The state of a sharded optimizer is
// written by the rank that holds it, without communication.
//
// Threads: like the objects that the state refers to.
// Errors:  InvalidArgument for tensors that cannot be saved, and those of
//          CheckpointSet.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "src/checkpoint/checkpoint_manifest.h"
#include "src/checkpoint/checkpoint_set.h"
#include "src/checkpoint/named_tensors.h"

namespace lockstep {

// Elements of a tensor, from number `part.begin` on.
struct StatePiece {
  std::string name{};
  ShardedPart part{};
  at::Tensor elements{};  // flat; shares the memory of the state
};

// The dimensions of a dense tensor from the slowest to the fastest in memory;
// empty for rows.
std::vector<std::int64_t> order_of(const at::Tensor& dense);

// The whole of a tensor, as it lies in memory where it is dense.
StatePiece whole_piece(const std::string& name, const at::Tensor& tensor);

// Numbers that are equal where ranks hold the same.
struct PiecesDigest {
  std::int64_t outline = 0;  // names, types, shapes and layouts
  // Elements 0, 1021, 2042, … of each piece: replicas that took different steps
  // differ nearly everywhere, but for tables of which a step changes few rows;
  // reading all of the state on every rank would cost more than writing it.
  std::int64_t sample = 0;
};
PiecesDigest digest_of(const std::vector<StatePiece>& pieces);

// This rank's part of `held_by_all`, whole pieces that all ranks hold, whose
// digest is `digest`. A collective: where the digests differ, as where only one
// rank has a model, rank 0 gets all pieces, and logs a warning if only the
// elements differ.
std::vector<StatePiece> divide_pieces(
    const std::vector<StatePiece>& held_by_all, const PiecesDigest& digest,
    ProcessGroup& group);

// A tensor of the set, in memory of its own.
at::Tensor read_tensor(const CheckpointSet& set, const std::string& name);

// All tensors whose names begin with `prefix`, under their whole names.
NamedTensors read_tensors(const CheckpointSet& set, std::string_view prefix);

// `count` elements from `begin` on, flat, in the order in which the elements of
// `like`, a dense tensor of the same shape, lie in memory.
at::Tensor read_piece(const CheckpointSet& set, const std::string& name,
                      const at::Tensor& like, std::int64_t begin,
                      std::int64_t count);

}  // namespace lockstep
