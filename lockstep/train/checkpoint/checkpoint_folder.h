// A folder of a run's checkpoints. It finds the newest complete one after a
// kill at any moment, a full disk or a damaged file.
//
//     lockstep::CheckpointFolder folder("runs/1", {.keep = 3});
//     lockstep::TrainingState state{…};
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
// write or prepare() until its destruction, within the limits of
// train/checkpoint/folder_lock.h. Only rank 0 accesses it, so the ranks need no
// shared file system.
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

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/folder_lock.h"
#include "lockstep/train/checkpoint/tensor_archive.h"
#include "lockstep/train/checkpoint/training_state.h"

namespace lockstep {

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

  // Writes the result of collect() as save() does, and returns the path.
  std::filesystem::path write(TensorArchive checkpoint, std::int64_t step);

 private:
  ProcessGroup& group();
  void delete_old(const std::filesystem::path& written);
  // How long to wait for another writer: the other ranks of a group wait
  // meanwhile, in a collective.
  std::chrono::nanoseconds patience() const;

  std::filesystem::path folder_;
  CheckpointFolderOptions options_;
  std::set<std::filesystem::path> damaged_;  // skipped
  std::optional<FolderLock> lock_;           // for writing
};

}  // namespace lockstep
