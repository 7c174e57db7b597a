// All that a training run consists of, so that it can be written down and gone
// on with later: what is saved is what the loop itself uses, by reference.
//
//     lockstep::TrainingState state{
//         .model = model.module(),
//         .optimizer = &optimizer,
//         .counters = {{"epoch", &epoch}, {"step", &step}}};
//
// train/checkpoint_folder.h saves it and loads it back.
//
// Threads: as what it refers to.
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

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/gradient_scaler.h"
#include "lockstep/train/tensor_archive.h"

namespace lockstep {

// LibTorch's generator of numbers for the CPU, from which torch::rand() and
// torch::nn::Dropout draw.
at::Generator default_cpu_generator();

// What is named here must outlive the state. Parameters, buffers, optimizer,
// scaler and counters are rank 0's: with data parallelism all ranks have the
// same. Of generators and `own` each rank keeps its own.
struct TrainingState {
  // Without its wrapper; null where rank 0's memory is this rank's too.
  std::shared_ptr<torch::nn::Module> model{};
  torch::optim::Optimizer* optimizer = nullptr;
  GradientScaler* scaler = nullptr;
  // Where the run is: epoch, step within it, …
  std::map<std::string, std::int64_t*> counters{};
  std::map<std::string, at::Generator> generators{
      {"cpu", default_cpu_generator()}};
  // Anything else, of the same shapes on every rank; written to in place.
  std::map<std::string, at::Tensor> own{};
  // What must be the same for a checkpoint to be of any use: data set, batch
  // size, …
  std::map<std::string, std::string> job{};
};

// Hands the state as tensors and texts to `keep` on rank 0, while the others
// wait; when that throws, so do all. Every rank's buffers become rank 0's,
// which are saved, unless some rank has no model. A collective: every rank
// calls it.
void collect(const TrainingState& state, ProcessGroup& group,
             const std::function<void(TensorArchive)>& keep);

// Makes the state what it was when `checkpoint` was collected: changes all of
// it on every rank, or nothing on any. At another number of ranks, generators
// begin with new seeds on the ranks that were not there, and `own` is the sum
// over all ranks on rank 0, and zeros elsewhere. `file` names the checkpoint in
// errors. A collective: every rank calls it with the same checkpoint; where it
// does not fit the state of some, the others throw an Error that quotes one.
void restore(const TrainingState& state, const TensorArchive& checkpoint,
             ProcessGroup& group, const std::string& file);

}  // namespace lockstep
