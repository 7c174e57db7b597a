#include "src/launch/record/job_list.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/base/number_in.h"
#include "src/base/text_file.h"
#include "src/net/step_memory.h"

namespace lockstep {
namespace fs = std::filesystem;

namespace {

using OrderedJson = nlohmann::ordered_json;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr std::string_view kSharedMemory = "/dev/shm";
constexpr std::string_view kFolderStem = "lockstep-";
constexpr std::string_view kJobStem = "job-";
constexpr std::string_view kTemporary = ".tmp";
constexpr std::string_view kListed = ".json";
constexpr std::string_view kSteps = ".steps";
constexpr std::string_view kJobListFormat = "lockstep running job";
constexpr int kJobListVersion = 2;
constexpr std::size_t kMostBytes = std::size_t{1} << 20;
constexpr std::size_t kMostWorkers = std::size_t{1} << 16;
// Beyond every number that is possible.
constexpr int kNoNumber = std::numeric_limits<int>::min();
constexpr std::size_t kMostCommandBytes = std::size_t{1} << 14;

fs::path folder_of(uid_t user) {
  return fs::path(kSharedMemory) / fmt::format("{}{}", kFolderStem, user);
}

// A folder that only `owner` can change; empty for any other.
FileDescriptor open_private_folder(const fs::path& path, uid_t owner) {
  FileDescriptor folder(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  const bool is_private = folder && ::fstat(folder.get(), &status) == 0 &&
                          status.st_uid == owner &&
                          (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
  return is_private ? std::move(folder) : FileDescriptor();
}

// A regular file; opening a pipe or a device must neither wait nor act.
FileDescriptor open_file_in(const FileDescriptor& folder,
                            const std::string& name) {
  FileDescriptor file(::openat(folder.get(), name.c_str(),
                               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  const bool regular =
      file && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode);
  return regular ? std::move(file) : FileDescriptor();
}

// Whether its launcher still holds its lock. A file system without locks cannot
// tell, so that the file stays. Where not, this process has a lock until it
// closes the file: a launcher that has just made it then makes another.
bool is_locked(const FileDescriptor& file) {
  return ::flock(file.get(), LOCK_SH | LOCK_NB) != 0;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error))
    names.push_back(at->path().filename().string());
  return names;
}

// "job-PID-TIME" of such a file of steps; empty for other files.
std::string_view stem_of_steps(std::string_view name) {
  if (!name.starts_with(kJobStem) || !name.ends_with(kSteps)) return {};
  name.remove_suffix(kSteps.size());
  const std::string_view numbers = name.substr(kJobStem.size());
  const std::size_t dash = numbers.find('-');
  const bool is_ours = dash != numbers.npos &&
                       number_in<pid_t>(numbers.substr(0, dash)) &&
                       number_in<std::int64_t>(numbers.substr(dash + 1));
  return is_ours ? name : std::string_view();
}

// Of a job whose file of steps this process has locked; `names` are sorted.
// replace_text_file() may have left a temporary file.
void remove_files_of(std::string_view stem, std::span<const std::string> names,
                     const FileDescriptor& folder) {
  const std::string listed = fmt::format("{}{}", stem, kListed);
  const std::string temporary = "." + listed + ".";
  for (auto name = std::ranges::lower_bound(names, temporary);
       name != names.end() && name->starts_with(temporary); ++name)
    if (name->ends_with(kTemporary)) ::unlinkat(folder.get(), name->c_str(), 0);
  ::unlinkat(folder.get(), listed.c_str(), 0);
  ::unlinkat(folder.get(), fmt::format("{}{}", stem, kSteps).c_str(), 0);
}

// The stems of the jobs whose launchers are alive; removes the files of those
// that have ended, and no other file. A launcher makes its file of steps first
// and removes it last.
std::vector<std::string> living_stems(const fs::path& path,
                                      const FileDescriptor& folder) {
  std::vector<std::string> living;
  std::vector<std::string> names = names_in(path);
  std::ranges::sort(names);
  for (const std::string& name : names) {
    const std::string_view stem = stem_of_steps(name);
    if (stem.empty()) continue;
    const FileDescriptor file = open_file_in(folder, name);
    if (!file || !is_step_memory(file)) continue;
    if (is_locked(file))
      living.emplace_back(stem);
    else
      remove_files_of(stem, names, folder);
  }
  return living;
}

std::string read_all(const FileDescriptor& file) {
  std::string text(kMostBytes, '\0');
  std::size_t size = 0;
  for (ssize_t count = 1; count > 0 && size < text.size();
       size += static_cast<std::size_t>(std::max<ssize_t>(count, 0)))
    count = ::pread(file.get(), text.data() + size, text.size() - size,
                    static_cast<off_t>(size));
  text.resize(size);
  return text;
}

// Any user writes such a file, and a conversion of 1e300 has no defined result.
bool has_integers(const OrderedJson& object) {
  const auto is_integer = [](const OrderedJson& value) {
    return value.is_number_integer();
  };
  return std::ranges::all_of(
             std::array{"launcher", "world_size", "restarts", "began"},
             [&](const char* name) { return is_integer(object.at(name)); }) &&
         std::ranges::all_of(object.at("workers"), is_integer) &&
         std::ranges::all_of(object.at("ranks"), is_integer);
}

// Nothing for a text that is not such a job, or has impossible numbers.
std::optional<ListedJob> parse_job(const std::string& text) try {
  const OrderedJson object = OrderedJson::parse(text);
  if (object.at("format") != kJobListFormat ||
      object.at("version") != kJobListVersion ||
      object.at("workers").size() > kMostWorkers || !has_integers(object))
    return std::nullopt;
  const auto fitting = [](std::int64_t value) {
    return std::in_range<int>(value) ? static_cast<int>(value) : kNoNumber;
  };
  const auto number = [&](const char* name) {
    return fitting(object.at(name).get<std::int64_t>());
  };
  const auto numbers = [&](const char* name) {
    std::vector<int> all;
    for (const auto value : object.at(name).get<std::vector<std::int64_t>>())
      all.push_back(fitting(value));
    return all;
  };
  ListedJob job{.launcher = number("launcher"),
                .command = object.at("command").get<std::vector<std::string>>(),
                .run_id = object.at("run_id").get<std::string>(),
                .world_size = number("world_size"),
                .restarts = number("restarts"),
                .pids = numbers("workers"),
                .ranks = numbers("ranks")};
  job.began = steady_clock::time_point(
      nanoseconds(object.at("began").get<std::int64_t>()));
  const auto now = steady_clock::now();
  if (job.began <= now && job.began.time_since_epoch() >= nanoseconds(0))
    job.running = now - job.began;
  const bool possible =
      job.launcher > 1 && job.world_size >= 1 && job.restarts >= 0 &&
      job.ranks.size() == job.pids.size() &&
      std::ranges::all_of(job.pids, [](int pid) { return pid > 1; }) &&
      std::ranges::all_of(job.ranks, [&](int rank) {
        return rank >= -1 && rank < job.world_size;
      });
  if (!possible) return std::nullopt;
  return job;
} catch (const OrderedJson::exception&) {
  return std::nullopt;
}

void list_jobs_of(const fs::path& path, uid_t user, JobList& list) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    const int reason = errno;
    std::error_code ignored;
    if (reason == ENOENT &&
        fs::is_directory(fs::absolute(path).parent_path(), ignored))
      return;
    list.problems.push_back(fmt::format(
        "jobs cannot be listed in {}: {}; next: make a folder that belongs to "
        "this user alone, and name it by LOCKSTEP_JOBS_DIR",
        path.string(), std::strerror(reason)));
    return;
  }
  const FileDescriptor folder = open_private_folder(path, user);
  if (!folder) {
    list.problems.push_back(fmt::format(
        "jobs cannot be listed in {}: it is not a folder that belongs to user "
        "{} alone",
        path.string(), user));
    return;
  }
  for (const std::string& stem : living_stems(path, folder)) {
    const FileDescriptor listed =
        open_file_in(folder, fmt::format("{}{}", stem, kListed));
    if (!listed && (errno == EMFILE || errno == ENFILE)) {
      list.problems.push_back(fmt::format(
          "more jobs of user {} are not shown: {}; next: raise the limit of "
          "open files (ulimit -n)",
          user, std::strerror(errno)));
      return;
    }
    if (!listed) continue;  // the job starts or ends
    auto job = parse_job(read_all(listed));
    if (!job) {
      list.problems.push_back(fmt::format("{}/{}{} does not describe a job",
                                          path.string(), stem, kListed));
      continue;
    }
    job->user = user;
    job->steps = open_file_in(folder, fmt::format("{}{}", stem, kSteps));
    if (!job->steps && (errno == EMFILE || errno == ENFILE))
      list.problems.push_back(fmt::format(
          "the steps of job {} are not shown: {}; next: raise the limit of "
          "open files (ulimit -n)",
          job->launcher, std::strerror(errno)));
    list.jobs.push_back(*std::move(job));
  }
}

// The command, cut where it is so long that the file would become too large.
std::vector<std::string> shortened(const std::vector<std::string>& command) {
  std::vector<std::string> words;
  std::size_t left = kMostCommandBytes;
  for (const std::string& word : command) {
    if (word.size() > left) {
      words.emplace_back("...");
      break;
    }
    left -= word.size();
    words.push_back(word);
  }
  return words;
}

}  // namespace

fs::path job_list_folder(const EnvironmentLookup& lookup) {
  const auto chosen = lookup("LOCKSTEP_JOBS_DIR");
  if (!chosen || chosen->empty()) return folder_of(::geteuid());
  // Ranks may change their directory before they open their file.
  std::error_code error;
  fs::path folder = fs::absolute(*chosen, error);
  return error ? fs::path(*chosen) : folder;
}

JobListing::JobListing(fs::path folder, int workers)
    : folder_(std::move(folder)) {
  // Another launcher may remove the folder when its own job ends, and a reader
  // a file that has no lock yet.
  constexpr int kAttempts = 3;
  for (int attempt = 0; attempt < kAttempts && !lock_; ++attempt)
    make_file(workers);
}

void JobListing::make_file(int workers) try {
  ::mkdir(folder_.c_str(), S_IRWXU);
  const FileDescriptor opened = open_private_folder(folder_, ::geteuid());
  if (!opened) return;
  living_stems(folder_, opened);
  stem_ = fmt::format("job-{}-{}", ::getpid(),
                      steady_clock::now().time_since_epoch().count());
  FileDescriptor file = create_step_memory(path_of(kSteps), workers);
  struct stat status {};
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0 &&
      ::fstat(file.get(), &status) == 0 && status.st_nlink > 0)
    lock_ = std::move(file);
  else
    ::unlink(path_of(kSteps).c_str());
} catch (const SystemError& error) {
  log(LogLevel::kInfo,
      std::string("lockstep status will not show this job: ") + error.what());
}

JobListing::~JobListing() {
  if (!lock_) return;
  ::unlink(path_of(kListed).c_str());
  ::unlink(path_of(kSteps).c_str());
  // Only if it is empty; a folder that the user has named stays.
  if (folder_ == folder_of(::geteuid())) ::rmdir(folder_.c_str());
}

std::string JobListing::path_of(std::string_view ending) const {
  return (folder_ / fmt::format("{}{}", stem_, ending)).string();
}

std::string JobListing::steps_file() const {
  return lock_ ? path_of(kSteps) : "";
}

void JobListing::publish(const ListedJob& job) try {
  if (!lock_) return;
  const OrderedJson object{
      {"format", kJobListFormat},
      {"version", kJobListVersion},
      {"launcher", ::getpid()},
      {"began", job.began.time_since_epoch() / nanoseconds(1)},
      {"command", shortened(job.command)},
      {"run_id", job.run_id},
      {"world_size", job.world_size},
      {"restarts", job.restarts},
      {"workers", job.pids},
      {"ranks", job.ranks}};
  replace_text_file(
      path_of(kListed),
      object.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
} catch (const SystemError& error) {
  log(LogLevel::kDebug, std::string("the job is not listed: ") + error.what());
}

namespace {

// The users of the folders in shared memory that launchers make.
std::vector<uid_t> users_with_folders() {
  std::vector<uid_t> users;
  for (const std::string& name : names_in(kSharedMemory)) {
    if (!name.starts_with(kFolderStem)) continue;
    const auto user =
        number_in<uid_t>(std::string_view(name).substr(kFolderStem.size()));
    // Not "lockstep-00": each user has one folder.
    if (user && folder_of(*user).filename() == name) users.push_back(*user);
  }
  return users;
}

// A user can make folders with the numbers of others: one line for all.
void list_jobs_of_all(JobList& list) {
  int foreign = 0;
  int closed = 0;
  for (const uid_t user : users_with_folders()) {
    const fs::path folder = folder_of(user);
    if (open_private_folder(folder, user))
      list_jobs_of(folder, user, list);
    else if (::access(folder.c_str(), R_OK) != 0 && errno == EACCES)
      ++closed;
    else
      ++foreign;
  }
  if (closed > 0)
    list.problems.push_back(fmt::format(
        "jobs of {} other user{} are not shown, which only root may see",
        closed, closed == 1 ? "" : "s"));
  if (foreign > 0)
    list.problems.push_back(fmt::format(
        "{} of the folders {}/{}USER do not belong to that user alone; jobs of "
        "these users are not shown",
        foreign, kSharedMemory, kFolderStem));
}

}  // namespace

JobList list_jobs(const EnvironmentLookup& lookup, JobsOf whose) {
  JobList list;
  const bool chosen = !lookup("LOCKSTEP_JOBS_DIR").value_or("").empty();
  if (whose == JobsOf::kThisUser || chosen)
    list_jobs_of(job_list_folder(lookup), ::geteuid(), list);
  else
    list_jobs_of_all(list);
  std::ranges::sort(list.jobs, std::greater(), &ListedJob::running);
  return list;
}

}  // namespace lockstep
