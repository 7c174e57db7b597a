// What the ranks of a job, and its launcher, left in a folder when something
// went wrong. docs/formats/record.md describes the files.
//
// Threads: pure, but for reading the disk.
// Errors:  InvalidArgument when there is no such folder, or no record in it.
//          A file that cannot be used is left out, with the reason.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/record.h"
#include "lockstep/launch/job_record.h"

namespace lockstep {

struct Evidence {
  std::vector<RankRecord> records{};  // by rank, at most one of each
  std::optional<JobRecord> job{};
  std::vector<std::string> unusable{};  // "rank-3.json: the reason"

  int world_size() const;
  // Null when the rank left none.
  const RankRecord* find(int rank) const;
  // The ranks that left none.
  std::vector<int> silent() const;
};

Evidence read_evidence(const std::filesystem::path& folder);

}  // namespace lockstep
