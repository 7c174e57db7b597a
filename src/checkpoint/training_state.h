// A run's TrainingState as named tensors and texts, and back.
// lockstep/checkpoint/checkpoint.h defines the state.
//
// Threads: like the objects that the state refers to.
// Errors:  InvalidArgument when a checkpoint does not fit the state; those of
//          the folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/process_group.h"
#include "src/checkpoint/checkpoint_set.h"
#include "src/checkpoint/state_pieces.h"
#include "src/checkpoint/tensor_archive.h"

namespace lockstep {

// Passes the state as tensors and texts to `keep` on rank 0, while the others
// wait; when `keep` throws, all ranks throw. Rank 0's buffers are saved and
// copied to every rank, unless some rank has no model. A collective: every rank
// calls it.
void collect(const TrainingState& state, ProcessGroup& group,
             const std::function<void(TensorArchive)>& keep);

// Restores the state from `checkpoint`: completely on every rank, or not at
// all. With another number of ranks, generators get new seeds on the ranks that
// did not exist then, and `own` becomes the sum over all ranks on rank 0, and
// zeros elsewhere. `file` names the checkpoint in errors. A collective: every
// rank calls it with the same checkpoint; where it does not fit the state of
// some ranks, the others throw an Error that quotes one of them.
void restore(const TrainingState& state, const TensorArchive& checkpoint,
             ProcessGroup& group, const std::string& file);

// What this rank writes of a sharded checkpoint: the pieces share the state's
// memory. Fills in the checkpoint's texts. Rank 0's buffers are copied to every
// rank, as by collect(). A collective.
std::vector<StatePiece> collect_pieces(const TrainingState& state,
                                       ProcessGroup& group,
                                       SafetensorsMetadata& texts);

// As restore(), from a set, of which each rank reads only what it needs.
// Returns false, and changes nothing, where a running writer has deleted the
// set.
bool restore(const TrainingState& state, const CheckpointSet& set,
             ProcessGroup& group, const std::string& file);

// Writes the result of collect() as the checkpoint of `step`, as the folder's
// save() does, and returns its path. One rank alone calls it.
std::filesystem::path write_checkpoint(CheckpointFolder& folder,
                                       TensorArchive checkpoint,
                                       std::int64_t step);

}  // namespace lockstep
