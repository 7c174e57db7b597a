// The records that a job's ranks and launcher wrote to a folder after a
// failure. docs/formats/record.md describes the files.
//
// Threads: any thread; reads the disk.
// Errors:  InvalidArgument when the folder does not exist or holds no record.
//          An unusable file is listed with the reason.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/diagnosis/record.h"
#include "src/launch/record/job_record.h"

namespace lockstep {

struct Evidence {
  std::vector<RankRecord> records{};  // by rank, at most one per rank
  std::optional<JobRecord> job{};
  std::vector<std::string> unusable{};  // "rank-3.json: the reason"

  int world_size() const;
  // Null when the rank wrote no record.
  const RankRecord* find(int rank) const;
  // The ranks without a record.
  std::vector<int> silent() const;
};

Evidence read_evidence(const std::filesystem::path& folder);

}  // namespace lockstep
