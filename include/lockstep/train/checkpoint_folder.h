// The whole state of a training run, and a folder of its checkpoints, which
// finds the newest complete one after a kill at any moment, a full disk or a
// damaged file. The state refers to the variables that the training loop itself
// uses.
//
//     lockstep::CheckpointFolder folder("runs/1", {.keep = 3});
//     lockstep::TrainingState state{
//         .model = model.module(),
//         .optimizer = &optimizer,
//         .counters = {{"epoch", &epoch}, {"step", &step}}};
//     folder.resume(state);       // resumes from the newest, if any
//     for (; epoch < 10; ++epoch, step = 0)
//       for (; step < steps; …) {
//         …
//         ++step;
//         if (step % 100 == 0) folder.save(state, epoch * steps + step);
//       }
//
// Checkpoints are named checkpoint-000100.safetensors, …: the number is the
// run's steps so far, and the highest is the newest. Each is one file that a
// rename makes visible when it is complete and on the disk; older ones are
// deleted after that. A folder belongs to one object from the object's first
// write or prepare() until its destruction: the file `.lock` in it, locked with
// flock(2), names the process. A process that was forked from the owner without
// exec and outlives it keeps holding the lock. Where the file system does not
// support locks, a warning is logged instead. Only rank 0 accesses the folder,
// so the ranks need no shared file system.
//
// Threads: single-threaded. save(), resume() and load() are collectives: every
//          rank of the group calls them at the same point of the program, and
//          waits for rank 0. A rank that calls one alone gets Mismatch, or
//          Timeout naming the missing ranks, as with any collective.
// Errors:  every rank throws when one fails: SystemError on rank 0, and Error
//          quoting it on the others, when the folder cannot be read or written;
//          InvalidArgument for a folder that another run writes to, for a
//          checkpoint that is damaged or from a later version, and, on the rank
//          whose state it does not fit, with Error on the others. No rank has
//          changed then, and the group keeps working.
// See docs/guides/checkpoints.md and docs/formats/checkpoint.md.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/train/checkpoint.h"

namespace lockstep {

class FolderLock;
class GradientScaler;
struct TensorArchive;

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

struct CheckpointFolderOptions {
  // The number of newest checkpoints to keep, at least 1; those that resume()
  // or load() found damaged are deleted before complete ones.
  int keep = 3;
  // The format of new checkpoints. Existing ones may have either.
  CheckpointFormat format = CheckpointFormat::kSafetensors;
  // The ranks that save together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
};

class CheckpointFolder {
 public:
  // Does not access the folder yet. An empty path is the working directory.
  explicit CheckpointFolder(std::filesystem::path folder,
                            CheckpointFolderOptions options = {});
  ~CheckpointFolder();
  CheckpointFolder(CheckpointFolder&&) noexcept;
  CheckpointFolder& operator=(CheckpointFolder&&) noexcept;

  // Writes the checkpoint of `step`, at least 0, which becomes the newest;
  // replaces one of the same step. Rank 0's buffers, such as running
  // statistics, are saved and copied to every rank. InvalidArgument where
  // check_step() throws it.
  void save(const TrainingState& state, std::int64_t step);

  // Restores `state` from the newest complete checkpoint, and returns its path;
  // does nothing when the folder has none or does not exist.
  std::optional<std::filesystem::path> resume(const TrainingState& state);

  // The same from a file, or from the newest one in another folder, which must
  // exist. Returns the file.
  std::filesystem::path load(const std::filesystem::path& path,
                             const TrainingState& state);

  // One rank alone calls the methods below.

  // Creates the folder, and throws as save() would where the folder cannot be
  // written or another run writes there: a check before hours of work.
  void prepare();

  // Throws InvalidArgument if the folder holds a checkpoint of a later step,
  // which would count as the newest: the user of a run that went back to an
  // older one must first decide about the later ones. Checkpoints that resume()
  // or load() found damaged do not count.
  void check_step(std::int64_t step) const;

  // All files with a checkpoint's name, complete or not, the earliest step
  // first.
  std::vector<std::filesystem::path> files() const;

  // The newest complete checkpoint. Skips damaged ones, with a warning in the
  // log. InvalidArgument if all are damaged, and for one from a later version.
  // SystemError for one that cannot be read: it may be complete.
  std::optional<std::filesystem::path> newest() const;

 private:
  friend std::filesystem::path write_checkpoint(CheckpointFolder& folder,
                                                TensorArchive checkpoint,
                                                std::int64_t step);

  ProcessGroup& group();
  void delete_old(const std::filesystem::path& written);
  // How long to wait for another writer: the other ranks of a group wait
  // meanwhile, in a collective.
  std::chrono::nanoseconds patience() const;

  std::filesystem::path folder_;
  CheckpointFolderOptions options_;
  std::set<std::filesystem::path> damaged_;  // skipped
  std::unique_ptr<FolderLock> lock_;         // for writing
};

}  // namespace lockstep
