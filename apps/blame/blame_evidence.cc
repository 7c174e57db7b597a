#include "apps/blame/blame_evidence.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "src/base/text_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// A rank's record takes a few hundred kilobytes.
constexpr std::size_t kMostBytes = std::size_t{64} << 20;
// The records of one job are written within minutes, because the first rank
// that gives up ends the others.
constexpr double kMostSecondsApart = 600;

bool is_rank_file(const std::string& name) {
  return name.starts_with("rank-") && name.ends_with(".json");
}

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator at(folder, error);
  if (error)
    throw InvalidArgument(fmt::format(
        "there is no folder {} with records of ranks ({})\n  next:    "
        "LOCKSTEP_DUMP_DIR names the folder; a launcher's failure report "
        "shows it",
        folder.string(), error.message()));
  for (; !error && at != fs::directory_iterator(); at.increment(error))
    files.push_back(at->path());
  std::ranges::sort(files);
  return files;
}

// Reading a pipe or device under a record's name would block.
std::string read_file(const fs::path& file) {
  if (!fs::is_regular_file(file)) throw InvalidArgument("not a regular file");
  return read_text_file(file, kMostBytes);
}

void add_record(Evidence& evidence, RankRecord record) {
  const RankRecord* other = evidence.find(record.rank);
  if (other != nullptr)
    throw InvalidArgument(
        fmt::format("rank {} has another record", record.rank));
  evidence.records.push_back(std::move(record));
}

// Why `record` does not belong to the job of `newest`, or "".
std::string why_unrelated(const RankRecord& record, const RankRecord& newest) {
  if (!record.job.empty() && !newest.job.empty() && record.job != newest.job)
    return fmt::format("of another job: {}, where the newest record says {}",
                       record.job, newest.job);
  if (record.world_size != newest.world_size)
    return fmt::format(
        "of another job: {} ranks, where the newest record says "
        "{}",
        record.world_size, newest.world_size);
  const double earlier = newest.written_at - record.written_at;
  if (!(earlier <= kMostSecondsApart))
    return fmt::format("too old: written {:.0f} s before the newest", earlier);
  return "";
}

// Removes records of other jobs, in a folder that was used more than once. The
// newest record selects the job.
void drop_other_jobs(Evidence& evidence) {
  const auto newest =
      std::ranges::max_element(evidence.records, {}, &RankRecord::written_at);
  if (newest == evidence.records.end()) return;
  const RankRecord kept = *newest;
  std::erase_if(evidence.records, [&](const RankRecord& record) {
    const std::string why = why_unrelated(record, kept);
    if (!why.empty())
      evidence.unusable.push_back(
          fmt::format("{}: {}", record_file_name(record.rank), why));
    return !why.empty();
  });
}

// Removes the job record of another job.
void drop_other_launcher(Evidence& evidence) {
  if (!evidence.job || evidence.records.empty() ||
      evidence.job->rank < evidence.world_size())
    return;
  evidence.unusable.push_back(
      fmt::format("{}: of another job: rank {}, where the records are of {}",
                  kJobRecordName, evidence.job->rank, evidence.world_size()));
  evidence.job.reset();
}

}  // namespace

int Evidence::world_size() const {
  return records.empty() ? 0 : records.front().world_size;
}

const RankRecord* Evidence::find(int rank) const {
  const auto found = std::ranges::find(records, rank, &RankRecord::rank);
  return found == records.end() ? nullptr : &*found;
}

std::vector<int> Evidence::silent() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size(); ++rank)
    if (find(rank) == nullptr) ranks.push_back(rank);
  return ranks;
}

Evidence read_evidence(const fs::path& folder) {
  Evidence evidence;
  for (const fs::path& file : files_of(folder)) {
    const std::string name = file.filename();
    try {
      if (is_rank_file(name))
        add_record(evidence, decode_record(read_file(file)));
      else if (name == kJobRecordName)
        evidence.job = decode_job_record(read_file(file));
    } catch (const Error& error) {
      evidence.unusable.push_back(fmt::format("{}: {}", name, error.what()));
    }
  }
  drop_other_jobs(evidence);
  drop_other_launcher(evidence);
  std::ranges::sort(evidence.records, {}, &RankRecord::rank);
  if (evidence.records.empty())
    throw InvalidArgument(fmt::format(
        "the folder {} holds no usable record of a rank{}{}", folder.string(),
        evidence.unusable.empty() ? "" : "\n  unusable: ",
        fmt::join(evidence.unusable, "\n  unusable: ")));
  return evidence;
}

}  // namespace lockstep
