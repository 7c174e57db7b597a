// The file of --error-file: the failure that ended a job, for schedulers and
// tools. Its format: docs/formats/error_file.md.
//
// Errors:  SystemError when the file cannot be written or removed.
#pragma once

#include <string>

#include "src/launch/record/failure_report.h"

namespace lockstep {

// Removes the file of an earlier job, so that one that is there tells of this
// job.
void remove_error_file(const std::string& path);

// `restarts`: how often the workers were started again before.
void write_error_file(const std::string& path, const WorkerFailure& failure,
                      int restarts, const std::string& host);

}  // namespace lockstep
