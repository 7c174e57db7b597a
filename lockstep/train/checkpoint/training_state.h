// The whole state of a training run, to save and resume it: it refers to the
// variables that the training loop itself uses.
//
//     lockstep::TrainingState state{
//         .model = model.module(),
//         .optimizer = &optimizer,
//         .counters = {{"epoch", &epoch}, {"step", &step}}};
//
// train/checkpoint/checkpoint_folder.h saves it and loads it back.
//
// Threads: like the objects that it refers to.
// Errors:  InvalidArgument when a checkpoint does not fit the state.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/torch/optim/gradient_scaler.h"
#include "lockstep/train/checkpoint/tensor_archive.h"

namespace lockstep {

// LibTorch's random number generator for the CPU, which torch::rand() and
// torch::nn::Dropout use.
at::Generator default_cpu_generator();

// The objects named here must outlive the state. Parameters, buffers,
// optimizer, scaler and counters are saved from rank 0: with data parallelism
// all ranks have the same. Generators and `own` are saved per rank.
struct TrainingState {
  // Without its wrapper; null where this rank shares rank 0's memory.
  std::shared_ptr<torch::nn::Module> model{};
  torch::optim::Optimizer* optimizer = nullptr;
  GradientScaler* scaler = nullptr;
  // The position of the run: epoch, step within it, …
  std::map<std::string, std::int64_t*> counters{};
  std::map<std::string, at::Generator> generators{
      {"cpu", default_cpu_generator()}};
  // Anything else, of the same shapes on every rank; written to in place.
  std::map<std::string, at::Tensor> own{};
  // Properties that must match those of a checkpoint: data set, batch size, …
  std::map<std::string, std::string> job{};
};

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

}  // namespace lockstep
