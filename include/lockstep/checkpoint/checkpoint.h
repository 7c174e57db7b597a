// Files of a model, and of a training run.
//
// save_checkpoint() and load_checkpoint() save the parameters and buffers of a
// LibTorch module to a file and load them back, by name. A CheckpointFolder
// holds the whole state of a run, so that the run can resume.
//
// Python reads a safetensors file: `safetensors.torch.load_file(path)` gives
// the argument of `model.load_state_dict`. docs/formats/checkpoint.md describes
// the file.
//
// Threads: the module must not be trained during a call. The file at a path may
//          be replaced while others read it.
// Errors:  InvalidArgument naming the file unless it is a whole file of either
//          format, naming file and tensor when the file does not fit the
//          module, naming the file for a run's checkpoint whose checksum is
//          wrong, and naming what a reader could not load again: tensors that
//          are sparse, on the device meta or of types that safetensors lacks,
//          and names and texts that are not UTF-8; SystemError when the file
//          cannot be read or written; LibTorch's errors where memory is short.
//          A module changes either completely or not at all.
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

namespace lockstep {

// Safetensors is the default: Python reads and writes it. The other is
// LibTorch's own archive, as torch::save() writes it, for programs that read
// their models with torch::load(); Python's torch.load() refuses it with
// weights_only = True, its default, and torch.jit.load() takes it. Files from
// untrusted sources should be safetensors, which holds only data; reading an
// archive runs LibTorch's loader, which trusts it. Dots in names are the levels
// of an archive, as of a module. LibTorch writes names into source code and
// cannot read all of them back, such as `in`, `class` and names with quotation
// marks: saving them in this format is an error.
//
// kSharded is for a CheckpointFolder: a folder of safetensors files, one for
// each rank, which the ranks write in the background and read in parts. All
// ranks must see the folder. Use it where the state is large.
enum class CheckpointFormat { kSafetensors, kLibTorch, kSharded };

// Replaces the file at `path` by the present tensors of `module`, from any
// device and with any strides, stored as dense rows, and by the texts
// `metadata`, by name. All or nothing: after a failure or a kill the earlier
// file is there. A link stays, and the file keeps its mode. InvalidArgument for
// kSharded.
void save_checkpoint(const std::filesystem::path& path,
                     const torch::nn::Module& module,
                     const std::map<std::string, std::string>& metadata = {},
                     CheckpointFormat format = CheckpointFormat::kSafetensors);

// Copies the file's tensors over those of `module`, where each keeps its
// device, its type and its place in memory. Both must have the same names and
// shapes, as for PyTorch's load_state_dict(strict=True):
// - numbers of another type are converted; it is an error if that would lose a
//   fraction, an imaginary part, or make a finite number infinite;
// - a weight that several names of the module share may be in the file once;
// - num_batches_tracked may be missing, and keeps its value;
// - all names in the file may have the prefixes `module.` and `_orig_mod.`, as
//   PyTorch names those of a wrapped and of a compiled model.
// From a run's checkpoint it takes the model. The file may have any format, but
// LibTorch's only where its name does not end in .safetensors. Returns its
// metadata, without the texts that mark a run's checkpoint.
std::map<std::string, std::string> load_checkpoint(
    const std::filesystem::path& path, torch::nn::Module& module);

// Parameters and buffers of `module` and of all its submodules, copied to
// separate memory on the CPU under the same names, to save or send while
// training of the module continues: save_checkpoint() and torch::save() write
// the same for it as for the module, and training does not change it. Like all
// of LibTorch's memory, the copy lies in the heap that ranks share, if there is
// one. A tensor with two names, such as tied weights, is copied once. The copy
// is not a module of the same class, and cannot compute.
std::shared_ptr<torch::nn::Module> module_cpu_copy(
    const torch::nn::Module& module);

class FolderLock;
class GradientScaler;
class ShardWriter;
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
  // Anything else, of the same shapes on every rank; written to in place. Where
  // another number of ranks resumes, rank 0 gets the sum over the saved ranks,
  // and the others get zeros: keep an average as its sum and its count.
  std::map<std::string, at::Tensor> own{};
  // Properties that must match those of a checkpoint: data set, batch size, …
  std::map<std::string, std::string> job{};
  // The values of properties that a checkpoint may lack, because the program
  // described its job without them when it saved the checkpoint. Without a
  // value here, such a checkpoint belongs to another job.
  std::map<std::string, std::string> job_defaults{};
};

struct CheckpointFolderOptions {
  // The number of newest checkpoints to keep, at least 1; those that resume()
  // or load() found damaged are deleted before complete ones.
  int keep = 3;
  // The format of new checkpoints. Existing ones may have any.
  CheckpointFormat format = CheckpointFormat::kSafetensors;
  // The ranks that save together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
};

// How often save() had to wait for the checkpoint before, and how long.
struct CheckpointWaits {
  int count = 0;
  std::chrono::nanoseconds time{};
};

// A folder of a run's checkpoints, which finds the newest complete one after a
// kill at any moment, a full disk or a damaged file. The state refers to the
// variables that the training loop itself uses.
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
// run's steps so far, and the highest is the newest. Each is one file, or one
// folder, that a rename makes visible when it is complete and on the disk;
// older ones are deleted after that. A folder belongs to one object from the
// object's first write or prepare() until its destruction: the file `.lock` in
// it, locked with flock(2), names the process. A process that was forked from
// the owner without exec and outlives it keeps holding the lock. Where the file
// system does not support locks, a warning is logged instead. Only rank 0
// accesses the folder, so the ranks need no shared file system.
//
// With kSharded every rank accesses the folder. save() copies what the rank
// writes and returns; a thread of each rank writes the copy, 1/n of the model
// and of state that all ranks hold, and the whole of what only this rank holds.
// Where the ranks' models differ, rank 0 writes its own whole: save() compares
// one element in about a thousand of each tensor. When all ranks have written
// and rank 0 has read the shards' headers, the folder checkpoint-000100
// appears. At most one checkpoint is in progress: the next save() first waits
// for it. The destructor waits too, and logs an error; finish() throws it. A
// rank that leaves the group, as by destroy_process_group(), first waits for
// the checkpoint in progress.
//
// Threads: single-threaded. save(), finish(), resume() and load() are
//          collectives: every rank of the group calls them at the same point
//          of the program, and waits for rank 0. A rank that calls one alone
//          gets Mismatch, or Timeout naming the missing ranks, as with any
//          collective.
// Errors:  every rank throws when one fails: SystemError on rank 0, and Error
//          quoting it on the others, when the folder cannot be read or written;
//          InvalidArgument for a folder that another run writes to, for a
//          checkpoint that is damaged or from a later version, and, on the rank
//          whose state it does not fit, with Error on the others; when
//          saving, for a state that resume() would refuse, or that the format
//          cannot hold. No rank has changed then, no file is written or
//          deleted, and the group keeps working.
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
  // check_step() throws it. With kSharded it throws the error of the checkpoint
  // before, which then does not exist, and saves nothing. Does nothing while
  // the ranks of an elastic training that went back to their last commit repeat
  // steps of which they have saved later ones.
  void save(const TrainingState& state, std::int64_t step);

  // Waits until the last checkpoint is complete and on the disk: call it before
  // the program ends. Throws if it could not be written. Does nothing where
  // save() has waited for the disk.
  void finish();

  // Of this object's save().
  const CheckpointWaits& waits() const { return waits_; }

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
  // or load() found damaged do not count. With kSharded the same for a folder
  // of shards that has lost its manifest: a later checkpoint needs its name.
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
  const std::shared_ptr<ProcessGroup>& group_pointer();
  std::optional<std::filesystem::path> restore_found(
      const TrainingState& state, const std::filesystem::path& from);
  bool repeats(std::int64_t step);
  void await_earlier();
  void save_shards(const TrainingState& state, std::int64_t step);
  void begin_step(std::int64_t step);
  // How long to wait for another writer: the other ranks of a group wait
  // meanwhile, in a collective.
  std::chrono::nanoseconds lock_timeout() const;

  std::filesystem::path folder_;
  CheckpointFolderOptions options_;
  std::set<std::filesystem::path> damaged_;  // skipped
  std::filesystem::path being_written_;      // by the thread
  std::unique_ptr<FolderLock> lock_;         // for writing
  CheckpointWaits waits_;
  std::shared_ptr<ShardWriter> writer_;  // this object's; ends before the lock
};

}  // namespace lockstep
