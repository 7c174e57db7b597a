// The folder in which the ranks of a job leave their records when something
// goes wrong (docs/formats/record.md): one that was made for the job goes with
// it, unless there are records in it.
//
// Threads: one thread at a time.
// Errors:  none: without a folder there are no records.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "lockstep/net/file_descriptor.h"

namespace lockstep {

class RecordFolder {
 public:
  // One that the user named.
  explicit RecordFolder(std::filesystem::path chosen)
      : path_(std::move(chosen)) {}

  // A fresh one in `parent`, which is made when missing, or in the system's
  // folder for temporary files where `parent` is empty: what failed jobs of
  // this user have left there for more than a week is removed then. path() is
  // empty when it cannot be made.
  static RecordFolder make_in(std::filesystem::path parent);

  ~RecordFolder();
  RecordFolder(RecordFolder&& other) noexcept;
  RecordFolder& operator=(RecordFolder&&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool is_ours_ = false;
  // Locked while the job runs, so that no other launcher takes it for one that
  // was left.
  FileDescriptor lock_{};
};

// Removes what the launcher of an earlier job wrote about its end.
void forget_earlier_job(const std::filesystem::path& folder);

// Whether ranks have left records in `folder`.
bool has_records(const std::filesystem::path& folder);

}  // namespace lockstep
