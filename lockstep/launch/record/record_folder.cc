#include "lockstep/launch/record/record_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <string_view>
#include <vector>

#include "lockstep/launch/record/job_record.h"

namespace lockstep {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStem = "lockstep-records-";

// A folder (not a link) of this user that was not modified for a week.
bool is_forgotten(const fs::path& path) {
  constexpr std::time_t kWeek = 7 * 24 * 3600;
  struct stat status {};
  return path.filename().string().starts_with(kStem) &&
         ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid() &&
         status.st_mtime < std::time(nullptr) - kWeek;
}

FileDescriptor open_folder(const fs::path& path) {
  return FileDescriptor(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

void remove_forgotten(const fs::path& parent) {
  std::error_code error;
  std::vector<fs::path> forgotten;
  for (fs::directory_iterator at(parent, error), end; !error && at != end;
       at.increment(error))
    if (is_forgotten(at->path())) forgotten.push_back(at->path());
  for (const fs::path& path : forgotten) {
    const FileDescriptor lock = open_folder(path);
    if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0)
      fs::remove_all(path, error);
  }
}

}  // namespace

RecordFolder RecordFolder::make_in(fs::path parent) {
  std::error_code error;
  if (parent.empty()) {
    parent = fs::temp_directory_path(error);
    if (!error) remove_forgotten(parent);
  } else {
    fs::create_directories(parent, error);
  }
  RecordFolder folder{fs::path()};
  if (error) return folder;
  std::string name =
      (fs::absolute(parent, error) / fmt::format("{}XXXXXX", kStem)).string();
  if (error || ::mkdtemp(name.data()) == nullptr) return folder;
  folder.path_ = name;
  folder.is_ours_ = true;
  folder.lock_ = open_folder(folder.path_);
  if (folder.lock_) ::flock(folder.lock_.get(), LOCK_SH | LOCK_NB);
  return folder;
}

RecordFolder::RecordFolder(RecordFolder&& other) noexcept
    : path_(std::move(other.path_)),
      is_ours_(std::exchange(other.is_ours_, false)),
      lock_(std::move(other.lock_)) {}

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
  // operator++ throws; a folder that vanishes meanwhile has no entries.
  for (fs::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error))
    if (is_record(*at)) return true;
  return false;
}

}  // namespace lockstep
