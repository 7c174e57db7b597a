// A file to which whole records are appended: when one cannot be written, the
// file is as it was before, and the next may be tried.
//
// A record is with the kernel when append() returns: other processes see it,
// and a kill does not lose it. It is not synced to the disk: what a crash of
// the machine leaves is not promised.
//
// Threads: belongs to one thread, and the file to one process, at a time.
// Errors:  SystemError naming the file and the reason.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string_view>

#include "lockstep/net/file_descriptor.h"

namespace lockstep {

class AppendedFile {
 public:
  enum class Existing { kRefuse, kGoOn };

  // Makes the file, or opens the one that is there. Its folder must exist.
  AppendedFile(std::filesystem::path path, Existing existing);

  // Appends all of it, or nothing.
  void append(std::string_view record);

  const std::filesystem::path& path() const { return path_; }

  // Whether it ends in the middle of a line, as what a killed writer leaves
  // may.
  bool ends_within_line() const;

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  off_t size_ = 0;  // of the records that are whole
};

}  // namespace lockstep
