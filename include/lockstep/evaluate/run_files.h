// The files of a run: one that several ranks append to, the name of a rank's
// own, and TensorBoard's.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// A file to which the threads and processes of a job append whole records: a
// log, a table, the metrics of all ranks.
//
//     AppendedFile table("losses.csv");  // on every rank
//     table.append_line(std::to_string(step) + "," + std::to_string(loss));
//
// Each call locks the file, appends, and unlocks it. So records of several
// writers lie one after the other, each of them whole. All writers must use
// this class, or flock(2). When a call returns, the kernel has the record:
// other processes see it, and it survives a kill. It is not synced to the disk:
// a crash of the machine may lose it.
//
// A process that is killed in the middle of a record may leave its beginning;
// append_line() ends such a line before it appends the next. On NFS the lock is
// the server's, unless the file system is mounted with nolock or local_lock.
// docs/design/net.md describes these cases.
//
// Threads: any thread, and forked children; copies of an object are equal.
// Errors:  SystemError naming the file and the reason. Where a record does not
//          fit on the disk, the file stays as it was, and the caller may try
//          the next. InvalidArgument for a symbolic link, and for what is not a
//          regular file. Timeout naming the process that holds the lock.

class AppendedFile {
 public:
  enum class Existing { kAppend, kRefuse };

  // How long a call waits for the lock by default.
  static constexpr std::chrono::seconds kLockTimeout{30};

  // Creates the file if it does not exist. Its folder must exist. An existing
  // file keeps its contents; with kRefuse it is a SystemError with EEXIST, so
  // of several processes one succeeds. Logs a warning where the file system has
  // no locks: only records that the kernel takes in one write are then whole.
  explicit AppendedFile(const std::filesystem::path& path,
                        Existing existing = Existing::kAppend);

  // Appends `line`, and a newline unless it ends with one. Several lines stay
  // together. If the file ends in the middle of a line, as a killed writer or
  // an editor leaves it, the call ends that line first.
  void append_line(std::string_view line, Deadline deadline = kLockTimeout);

  // Appends the bytes of `record`, for formats whose readers find the records
  // by themselves and recognise an incomplete one.
  void append(std::string_view record, Deadline deadline = kLockTimeout);

  // Absolute. Each call opens the file that has this name at that moment, and
  // creates it anew where it was renamed or deleted.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The name of a rank's own file, from a pattern that all ranks share.
//
//     AppendedFile log(rank_path("logs/train-%r.log", *group));
//
// Threads: any thread.
// Errors:  InvalidArgument for an unknown letter after a percent sign, and for
//          a pattern that gives several ranks one file.

// `pattern` with these parts replaced:
//
//     %r   this process's rank in `group`; needed if the group has several
//     %h   the name of its host
//     %p   the number of its process, which differs from start to start
//     %%   a percent sign
//
// Without %p a restart has the name of the start before, and an AppendedFile
// appends to that file. `group` is the default group or another one with all
// ranks of the job: two ranks of two groups may have one number.
// Source: the letters of MPICH's -outfile-pattern and of NCCL_DEBUG_FILE.
std::filesystem::path rank_path(std::string_view pattern,
                                const ProcessGroup& group);

// A file of scalars that TensorBoard plots over the steps of a run.
//
// The format is TensorFlow's: records, each with its length and masked CRC-32C
// checksums, around protocol buffers of type Event (docs/formats/metrics.md).
//
// When a method returns, other processes see the record, and it survives a
// kill; a crash of the machine may lose it.
//
// Threads: an object belongs to one thread at a time.
// Errors:  SystemError naming the file and the reason; InvalidArgument for a
//          tag that is empty or not UTF-8. A record that cannot be written
//          leaves the file as it was.

// A point of the curve that TensorBoard calls `tag`: "train/loss" is the curve
// loss of the section train.
struct Scalar {
  std::string tag;
  double value = 0;  // stored as float32
};

class EventFile {
 public:
  // Creates a new file in `folder`, which must exist, under a unique name that
  // TensorBoard recognises: events.out.tfevents.SECONDS.HOST.PID.NUMBER.
  explicit EventFile(const std::filesystem::path& folder);

  // Marks the beginning or the resumption of a run that has made `step` steps:
  // TensorBoard keeps the points of earlier files in the folder up to this
  // step, and discards those of later steps, which the run makes again. A new
  // run whose first point has step 0 passes -1.
  void begin_at(std::int64_t step);

  // Adds one point to each curve, at this step and the present time. The file
  // has them when this returns.
  void add(std::int64_t step, std::span<const Scalar> scalars);
  // add(step, {{"train/loss", loss}, {"train/gradient_norm", norm}})
  void add(std::int64_t step, std::initializer_list<Scalar> scalars) {
    add(step, std::span(scalars.begin(), scalars.size()));
  }

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendedFile file_;
};

}  // namespace lockstep
