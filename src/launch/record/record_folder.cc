#include "src/launch/record/record_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <ctime>
#include <string_view>
#include <vector>

#include "src/launch/record/job_record.h"
#include "src/launch/worker/worker_environment.h"

namespace lockstep {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStem = "lockstep-records-";

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// "rank-3.json" for the start "rank-".
bool is_numbered(std::string_view name, std::string_view start) {
  constexpr std::string_view kEnd = ".json";
  if (!name.starts_with(start) || !name.ends_with(kEnd)) return false;
  name.remove_prefix(start.size());
  return name.size() > kEnd.size() &&
         is_number(name.substr(0, name.size() - kEnd.size()));
}

bool is_record_name(std::string_view name) {
  return is_numbered(name, "rank-");
}

// "77" or "77-2": the process and the number of its attempts.
bool is_number_of_writer(std::string_view text) {
  const std::size_t dash = text.find('-');
  return is_number(text.substr(0, dash)) &&
         (dash == text.npos || is_number(text.substr(dash + 1)));
}

// Also the temporary names of replace_text_file(): ".rank-3.json.PID.tmp" and
// ".rank-3.json.PID-N.tmp".
bool is_job_file_name(std::string_view name) {
  constexpr std::string_view kEnd = ".tmp";
  if (name.starts_with('.') && name.ends_with(kEnd)) {
    name = name.substr(1, name.size() - 1 - kEnd.size());
    const std::size_t dot = name.rfind('.');
    if (dot == std::string_view::npos ||
        !is_number_of_writer(name.substr(dot + 1)))
      return false;
    name = name.substr(0, dot);
  }
  return name == kJobRecordName || is_record_name(name) ||
         is_numbered(name, kExceptionStart) || is_numbered(name, kFaultStart);
}

// The stem and the six characters of mkdtemp().
bool is_made_name(std::string_view name) {
  constexpr std::size_t kRandomCharacters = 6;
  return name.starts_with(kStem) &&
         name.size() == kStem.size() + kRandomCharacters &&
         std::ranges::all_of(name.substr(kStem.size()), [](unsigned char c) {
           return std::isalnum(c) != 0;
         });
}

struct Contents {
  std::vector<fs::path> job_files;  // of jobs' ranks and launchers
  bool others = false;              // any other entry, or an unreadable folder
};

Contents contents_of(const fs::path& folder) {
  Contents contents;
  std::error_code error;
  // operator++ throws; a folder that vanishes meanwhile has no entries.
  for (fs::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code unknown;
    if (fs::is_regular_file(at->symlink_status(unknown)) &&
        is_job_file_name(at->path().filename().string()))
      contents.job_files.push_back(at->path());
    else
      contents.others = true;
  }
  contents.others |= static_cast<bool>(error);
  return contents;
}

// Leaves a folder to which another process has added a file meanwhile.
void remove_with(const fs::path& folder, const Contents& contents) {
  std::error_code error;
  for (const fs::path& file : contents.job_files) fs::remove(file, error);
  fs::remove(folder, error);
}

bool is_of_this_user(const fs::path& path, struct stat& status) {
  return ::lstat(path.c_str(), &status) == 0 && status.st_uid == ::geteuid();
}

// A file or folder of this user that was not modified for a week.
bool is_old(const fs::path& path) {
  constexpr std::time_t kWeek = 7 * 24 * 3600;
  struct stat status {};
  return is_of_this_user(path, status) &&
         status.st_mtime < std::time(nullptr) - kWeek;
}

FileDescriptor open_folder(const fs::path& path, int more_flags = 0) {
  return FileDescriptor(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | more_flags));
}

// Whether another process holds a lock of the folder. A file system without
// locks cannot tell.
bool is_used_by_others(const FileDescriptor& folder) {
  return ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

// An empty folder is of a launcher that was killed: a living one has locked it.
void remove_if_forgotten(const fs::path& folder) {
  struct stat status {};
  if (!is_of_this_user(folder, status)) return;
  const FileDescriptor lock = open_folder(folder, O_NOFOLLOW);
  if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return;
  const Contents contents = contents_of(folder);
  if (contents.others) return;
  if (contents.job_files.empty() ||
      (is_old(folder) && std::ranges::all_of(contents.job_files, is_old)))
    remove_with(folder, contents);
}

bool is_at(const fs::path& path, const FileDescriptor& folder) {
  struct stat here {};
  struct stat there {};
  return ::fstat(folder.get(), &here) == 0 &&
         ::stat(path.c_str(), &there) == 0 && here.st_dev == there.st_dev &&
         here.st_ino == there.st_ino;
}

// Creates `folder`/earlier-N; empty when that fails.
fs::path make_place_for_earlier(const fs::path& folder) {
  std::error_code error;
  for (int number = 1;; ++number) {
    fs::path place = folder / fmt::format("earlier-{}", number);
    if (fs::create_directory(place, error)) return place;
    if (error) return {};
  }
}

// Moves the files of an earlier job away, so that they are no evidence of the
// next one. Returns the folder to which it moved records of ranks.
fs::path set_earlier_aside(const fs::path& folder) {
  std::error_code error;
  if (!has_records(folder)) {
    fs::remove(folder / kJobRecordName, error);
    return {};
  }
  fs::path place = make_place_for_earlier(folder);
  if (place.empty()) return {};
  for (const fs::path& file : contents_of(folder).job_files)
    fs::rename(file, place / file.filename(), error);
  return place;
}

}  // namespace

RecordFolder::RecordFolder(fs::path chosen) : path_(std::move(chosen)) {
  std::error_code error;
  is_ours_ = fs::create_directories(path_, error);
  lock_ = open_folder(path_);
  if (!lock_) return;
  if (!is_used_by_others(lock_)) earlier_ = set_earlier_aside(path_);
  ::flock(lock_.get(), LOCK_SH | LOCK_NB);
}

RecordFolder RecordFolder::make_in(fs::path parent) {
  std::error_code error;
  if (parent.empty())
    parent = fs::temp_directory_path(error);
  else
    fs::create_directories(parent, error);
  RecordFolder folder;
  if (error) return folder;
  const std::string pattern =
      (fs::absolute(parent, error) / fmt::format("{}XXXXXX", kStem)).string();
  // Another launcher may take the new folder for a forgotten one before this
  // one has locked it.
  constexpr int kAttempts = 5;
  for (int attempt = 0; !error && attempt < kAttempts; ++attempt)
    if (folder.make(pattern)) break;
  return folder;
}

// Returns false where another launcher removes the folder at this moment.
bool RecordFolder::make(std::string pattern) {
  if (::mkdtemp(pattern.data()) == nullptr) return true;
  // Without a descriptor to spare, the folder is used unlocked.
  FileDescriptor lock = open_folder(pattern);
  if (!lock && errno == ENOENT) return false;
  const bool is_taken = lock && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0 &&
                        errno == EWOULDBLOCK;
  if (is_taken || (lock && !is_at(pattern, lock))) return false;
  path_ = std::move(pattern);
  is_ours_ = is_made_ = true;
  lock_ = std::move(lock);
  return true;
}

RecordFolder::RecordFolder(RecordFolder&& other) noexcept
    : path_(std::move(other.path_)),
      earlier_(std::move(other.earlier_)),
      is_ours_(std::exchange(other.is_ours_, false)),
      is_made_(other.is_made_),
      is_worthless_(other.is_worthless_),
      lock_(std::move(other.lock_)) {}

RecordFolder::~RecordFolder() {
  if (!is_ours_ || is_used_by_others(lock_)) return;
  const Contents contents = contents_of(path_);
  if (!contents.others && (is_worthless_ || !has_records(path_)))
    remove_with(path_, contents);
}

void RecordFolder::forget_records() { is_worthless_ = is_made_; }

void remove_forgotten_records() {
  std::error_code error;
  std::vector<fs::path> made;
  const fs::path parent = fs::temp_directory_path(error);
  for (fs::directory_iterator at(parent, error), end; !error && at != end;
       at.increment(error))
    if (is_made_name(at->path().filename().string()))
      made.push_back(at->path());
  std::ranges::for_each(made, remove_if_forgotten);
}

FileDescriptor lock_records(const fs::path& folder) {
  FileDescriptor lock = open_folder(folder);
  if (lock) ::flock(lock.get(), LOCK_SH | LOCK_NB);
  return lock;
}

std::vector<fs::path> records_in(const fs::path& folder) {
  std::vector<fs::path> files = contents_of(folder).job_files;
  std::erase_if(files, [](const fs::path& file) {
    return !is_record_name(file.filename().string());
  });
  return files;
}

bool has_records(const fs::path& folder) { return !records_in(folder).empty(); }

}  // namespace lockstep
