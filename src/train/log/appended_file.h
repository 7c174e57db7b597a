// Appends whole records to a file: when a record cannot be written, the file
// stays as it was, and the caller may try the next.
//
// When append() returns, the kernel has the record: other processes see it, and
// it survives a kill. It is not synced to the disk: a crash of the machine may
// lose it.
//
// Threads: an object belongs to one thread, and the file to one process, at a
//          time.
// Errors:  SystemError naming the file and the reason.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "src/net/file_descriptor.h"

namespace lockstep {

class AppendedFile {
 public:
  enum class Existing { kRefuse, kGoOn };

  // Creates the file, or opens the existing one. Its folder must exist.
  AppendedFile(std::filesystem::path path, Existing existing);

  // Appends the whole record, or nothing.
  void append(std::string_view record);

  const std::filesystem::path& path() const { return path_; }

  // Whether the file ends in the middle of a line, as a killed writer may leave
  // it.
  bool ends_within_line() const;

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  off_t size_ = 0;  // of the complete records
};

// `data` as a record in TensorFlow's TFRecord format, of which event files
// consist.
std::string framed_record(std::string_view data);

}  // namespace lockstep
