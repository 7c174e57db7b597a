// What the launcher adds to the records of a job's ranks: how the first worker
// ended that did not end well. docs/formats/record.md describes the file.
//
// Threads: values and pure functions; write_job_record() may be called from any
//          thread.
// Errors:  InvalidArgument for text that is no such record, SystemError when it
//          cannot be written.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

struct JobRecord {
  int workers = 1;
  int rank = 0;        // the worker's
  int signal = 0;      // the signal that ended it, or 0
  int exit_code = 0;   // what it returned, if no signal did
  double seconds = 0;  // from the job's start to its end

  friend bool operator==(const JobRecord&, const JobRecord&) = default;
};

inline constexpr std::string_view kJobRecordName = "job.json";

std::string encode_job_record(const JobRecord& record);
JobRecord decode_job_record(std::string_view text);

// Writes it into `folder`, which exists.
void write_job_record(const std::filesystem::path& folder,
                      const JobRecord& record);

}  // namespace lockstep
