// The files of a run that a program writes: one that several ranks append to,
// and the name of a rank's own.
#pragma once

#include <chrono>
#include <filesystem>
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

}  // namespace lockstep
