// A new content of a file, which takes the file's name in one step: at every
// moment the name holds either the earlier content or the whole new one.
//
// The bytes go to a temporary file, `.NAME.PID.tmp` or `.NAME.PID-N.tmp`, in
// the same folder. A name that is a link stays one: the file to which it leads
// is replaced. The new file has the mode and the POSIX ACL of the earlier one,
// and its owner and group as far as this process may give files away, so that a
// private file stays private. Another hard link to the earlier file keeps the
// earlier content.
//
// Threads: one thread at a time per object. Of two writers to one name the
//          later one wins; the contents never mix.
// Errors:  SystemError naming the file, the step that failed and the reason;
//          the earlier file is then untouched. A constructor that succeeds
//          leaves little that can fail later: see check_replaceable().
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace lockstep {

// The file that a program writes when it opens `path`: where links lead.
std::filesystem::path file_behind(const std::filesystem::path& path);

// Throws SystemError where a file cannot take the name `path`, or must not: the
// name belongs to a folder, a device, a pipe or an open file (/dev/stdout); the
// earlier file may not be written, is append-only, is mounted there, or is
// another user's in a folder with the sticky bit; or another user has made the
// link in such a folder. The folder of `path` need not exist.
void check_replaceable(const std::filesystem::path& path);

// The folder in which `path` is.
std::filesystem::path folder_of(const std::filesystem::path& path);

// Throws SystemError for the step of writing `path` that has set errno.
[[noreturn]] void fail_to_write(const std::filesystem::path& path,
                                const std::string& step);

class ReplacingFile {
 public:
  // The file's folder must exist. If there is no file `path` yet, the new one
  // gets the attributes of the file `like`, if that exists.
  explicit ReplacingFile(const std::filesystem::path& path,
                         const std::filesystem::path& like = {});
  // Deletes the temporary file, unless take_name() was called.
  ~ReplacingFile();
  ReplacingFile(const ReplacingFile&) = delete;
  ReplacingFile& operator=(const ReplacingFile&) = delete;

  void write(std::span<const std::byte> bytes);
  // Waits until the bytes are on the disk.
  void sync();
  // After an error the whole content stays in the temporary file, which the
  // error names.
  void take_name();

 private:
  void open(const std::filesystem::path& like);

  std::filesystem::path path_;
  std::filesystem::path target_;  // what path_ leads to
  std::string name_{};            // the temporary one
  bool replaces_ = false;         // an earlier file
  int file_ = -1;
  std::size_t written_ = 0;
};

}  // namespace lockstep
