// The folder to which the ranks of a job write their records after a failure
// (docs/formats/record.md). A folder that was made for the job is removed with
// it unless it holds records.
//
// Threads: one thread at a time.
// Errors:  none; without a folder there are no records.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "lockstep/net/file_descriptor.h"

namespace lockstep {

class RecordFolder {
 public:
  // Uses the folder that the user named.
  explicit RecordFolder(std::filesystem::path chosen)
      : path_(std::move(chosen)) {}

  // Creates a folder in `parent`, which is created when missing, or, when
  // `parent` is empty, in the system's folder for temporary files. In the
  // latter it also removes the folders of this user's failed jobs that are
  // older than a week. path() is empty when the folder cannot be created.
  static RecordFolder make_in(std::filesystem::path parent);

  ~RecordFolder();
  RecordFolder(RecordFolder&& other) noexcept;
  RecordFolder& operator=(RecordFolder&&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool is_ours_ = false;
  // Locked while the job runs, so that no other launcher removes the folder as
  // left over.
  FileDescriptor lock_{};
};

// Removes the job record that an earlier job's launcher wrote.
void forget_earlier_job(const std::filesystem::path& folder);

// Whether `folder` holds records of ranks.
bool has_records(const std::filesystem::path& folder);

}  // namespace lockstep
