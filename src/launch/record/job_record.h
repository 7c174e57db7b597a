// The launcher's addition to the records of a job's ranks: how the worker ended
// that it blames, and which workers were stopped. docs/formats/record.md
// describes the file.
//
// Threads: any thread.
// Errors:  InvalidArgument for malformed text, SystemError when the record
//          cannot be written.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct JobRecord {
  int workers = 1;
  int rank = 0;              // the worker's
  int signal = 0;            // the signal that ended it, or 0
  int exit_code = 0;         // its exit code, if no signal ended it
  double seconds = 0;        // from the job's start to its end
  bool lost_a_peer = false;  // it failed because of another rank
  // Ranks that a signal had stopped when the launcher ended the job.
  std::vector<int> stopped{};

  friend bool operator==(const JobRecord&, const JobRecord&) = default;
};

inline constexpr std::string_view kJobRecordName = "job.json";

std::string encode_job_record(const JobRecord& record);
JobRecord decode_job_record(std::string_view text);

// Writes the record into `folder`, which must exist.
void write_job_record(const std::filesystem::path& folder,
                      const JobRecord& record);

}  // namespace lockstep
