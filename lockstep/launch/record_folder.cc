#include "lockstep/launch/record_folder.h"

#include <stdlib.h>

#include "lockstep/launch/job_record.h"

namespace lockstep {
namespace fs = std::filesystem;

RecordFolder RecordFolder::make_in(fs::path parent) {
  std::error_code error;
  if (parent.empty())
    parent = fs::temp_directory_path(error);
  else
    fs::create_directories(parent, error);
  RecordFolder folder{fs::path()};
  if (error) return folder;
  std::string name =
      (fs::absolute(parent, error) / "lockstep-records-XXXXXX").string();
  if (error || ::mkdtemp(name.data()) == nullptr) return folder;
  folder.path_ = name;
  folder.is_ours_ = true;
  return folder;
}

RecordFolder::RecordFolder(RecordFolder&& other) noexcept
    : path_(std::move(other.path_)),
      is_ours_(std::exchange(other.is_ours_, false)) {}

RecordFolder::~RecordFolder() {
  if (!is_ours_ || has_records(path_)) return;
  std::error_code error;
  fs::remove_all(path_, error);
}

void forget_earlier_job(const fs::path& folder) {
  if (folder.empty()) return;
  std::error_code error;
  fs::remove(folder / kJobRecordName, error);
}

bool has_records(const fs::path& folder) {
  std::error_code error;
  const auto is_record = [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename();
    return name.starts_with("rank-") && name.ends_with(".json");
  };
  // Incrementing throws; a folder that goes away meanwhile has none.
  for (fs::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error))
    if (is_record(*at)) return true;
  return false;
}

}  // namespace lockstep
