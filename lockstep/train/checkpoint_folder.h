// A folder of a run's checkpoints, of which the newest complete one is found
// again whatever happened: a kill at any moment, a full disk, a damaged file.
//
//     lockstep::CheckpointFolder folder("runs/1", {.keep = 3});
//     lockstep::TrainingState state{…};
//     folder.resume(state);       // goes on from the newest, if there is one
//     for (; epoch < 10; ++epoch, step = 0)
//       for (; step < steps; …) {
//         …
//         ++step;
//         if (step % 100 == 0) folder.save(state, epoch * steps + step);
//       }
//
// Checkpoints are named checkpoint-000100.safetensors, …: the number is that of
// the steps that the run has made, and the highest is the newest. Each is one
// file that a rename makes visible when it is complete and on the disk; older
// ones are deleted after that. A folder belongs to one
// object from the first time that it writes there, or prepares to, until it is
// destroyed, as far as train/folder_lock.h says. Only rank 0 touches it, so
// that its file system need not be shared.
//
// Threads: single-threaded. save(), resume() and load() are collectives: every
//          rank of the group calls them at the same point of the program, and
//          waits for rank 0. A rank that calls one alone gets what that gives
//          with any collective: Mismatch, or Timeout naming the missing.
// Errors:  on every rank what went wrong on one: SystemError on rank 0, and
//          Error quoting it on the others, when the folder cannot be read or
//          written; InvalidArgument for a folder that another run writes to,
//          for a checkpoint that is damaged, or that a later version wrote, and
//          where it does not fit a rank's state, which the other ranks get as
//          Error. Nothing is changed on any rank then, and the group goes on
//          working.
// See docs/guides/checkpoints.md and docs/formats/checkpoint.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/train/folder_lock.h"
#include "lockstep/train/tensor_archive.h"
#include "lockstep/train/training_state.h"

namespace lockstep {

struct CheckpointFolderOptions {
  // So many of the newest are kept, at least 1; before whole ones those go that
  // resume() or load() found damaged.
  int keep = 3;
  // Of new ones. Those that are there may be of either.
  CheckpointFormat format = CheckpointFormat::kSafetensors;
  // The ranks that save together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
};

class CheckpointFolder {
 public:
  // Touches nothing yet. An empty path is the working directory's.
  explicit CheckpointFolder(std::filesystem::path folder,
                            CheckpointFolderOptions options = {});

  // Writes a checkpoint after `step` steps of the run, at least 0, after which
  // it is the newest; one of the same step is replaced. Every rank's buffers,
  // such as running statistics, become rank 0's, which are saved.
  // InvalidArgument where check_step() gives it.
  void save(const TrainingState& state, std::int64_t step);

  // Makes `state` that of the newest complete checkpoint, and returns which one
  // that was; leaves it alone when the folder has none, or is not there.
  std::optional<std::filesystem::path> resume(const TrainingState& state);

  // The same from a file, or from the newest one in another folder, which must
  // be there. Returns the file.
  std::filesystem::path load(const std::filesystem::path& path,
                             const TrainingState& state);

  // The rest is one rank's affair.

  // Makes the folder, and throws where save() would because nothing can be
  // written there, or another run writes there: asks before hours of work.
  void prepare();

  // Throws InvalidArgument where the folder holds a checkpoint of a later step,
  // which would be taken for the newest: a run that went back to an older one
  // has to say what becomes of those after it. Those that resume() or load()
  // found damaged do not count.
  void check_step(std::int64_t step) const;

  // All that are there by name, whole or not, the earliest step first.
  std::vector<std::filesystem::path> files() const;

  // The newest complete one. Damaged ones are passed over, with a warning in
  // the log; where there are only such, and for one that a later version
  // wrote, InvalidArgument. SystemError for one that cannot be read: it may be
  // whole.
  std::optional<std::filesystem::path> newest() const;

  // Writes what collect() gives as save() does, and returns its path.
  std::filesystem::path write(TensorArchive checkpoint, std::int64_t step);

 private:
  ProcessGroup& group();
  void delete_old(const std::filesystem::path& written);
  // How long another writer is waited for: the other ranks of a group wait
  // meanwhile, in a collective.
  std::chrono::nanoseconds patience() const;

  std::filesystem::path folder_;
  CheckpointFolderOptions options_;
  std::set<std::filesystem::path> damaged_;  // passed over
  std::optional<FolderLock> lock_;           // of who writes
};

}  // namespace lockstep
