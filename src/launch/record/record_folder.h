// The folder to which the ranks of a job write their records after a failure
// (docs/formats/record.md), or their exceptions (worker_exception.h). A folder
// that was made for the job is removed with it unless it holds records or files
// of others.
//
// Threads: one thread at a time.
// Errors:  none; without a folder there are no records.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "src/net/file_descriptor.h"

namespace lockstep {

class RecordFolder {
 public:
  // Uses the folder that the user named, and creates it when missing. Records
  // of an earlier job move into a new folder inside, earlier(), unless a job
  // that is still running or `lockstep blame` uses the folder.
  explicit RecordFolder(std::filesystem::path chosen);

  // Creates a folder in `parent`, which is created when missing, or, when
  // `parent` is empty, in the system's folder for temporary files. path() is
  // empty when the folder cannot be created.
  static RecordFolder make_in(std::filesystem::path parent);

  ~RecordFolder();
  RecordFolder(RecordFolder&& other) noexcept;
  RecordFolder& operator=(RecordFolder&&) = delete;

  // The records say nothing that the user does not know: they are removed with
  // the folder, unless the user has named it.
  void forget_records();

  const std::filesystem::path& path() const { return path_; }
  // The folder of an earlier job's records; empty: path() held none.
  const std::filesystem::path& earlier() const { return earlier_; }

 private:
  RecordFolder() = default;
  bool make(std::string pattern);

  std::filesystem::path path_;
  std::filesystem::path earlier_;
  bool is_ours_ = false;       // created here
  bool is_made_ = false;       // by make_in()
  bool is_worthless_ = false;  // see forget_records()
  // Shared by the jobs that use the folder, so that no other launcher removes
  // it as left over.
  FileDescriptor lock_{};
};

// Removes, in the system's folder for temporary files, the folders that
// make_in() made for this user and that no process uses, if they are empty, as
// a killed launcher leaves them, or hold only files of jobs, all older than a
// week.
void remove_forgotten_records();

// No launcher removes or moves the records in `folder` while the result lives.
[[nodiscard]] FileDescriptor lock_records(const std::filesystem::path& folder);

// The records of ranks in `folder`.
std::vector<std::filesystem::path> records_in(
    const std::filesystem::path& folder);

// Whether it holds any.
bool has_records(const std::filesystem::path& folder);

}  // namespace lockstep
