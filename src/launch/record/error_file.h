// The file of --error-file: the failure that ended a job, for schedulers and
// tools. Its format: docs/formats/error_file.md.
//
// Threads: one thread at a time per object.
// Errors:  SystemError when the file cannot be written or removed.
#pragma once

#include <string>

#include "src/launch/record/failure_report.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

class ErrorFile {
 public:
  // Removes the file of an earlier job, so that one that is there tells of this
  // job. A link to it stays.
  explicit ErrorFile(std::string path);

  // The file gets the attributes of the removed one. `restarts`: how often the
  // workers were started again before.
  void write(const WorkerFailure& failure, int restarts,
             const std::string& host) const;

 private:
  std::string path_;
  FileDescriptor earlier_;  // the removed file
};

}  // namespace lockstep
