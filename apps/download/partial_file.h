// A file that is being written: NAME.part beside NAME, which takes the name
// once it is complete and on the disk.
//
// What a stopped process wrote stays in NAME.part, so that another one goes on
// from there. A lock (flock) keeps two processes from writing it at once; a
// file system without locks leaves that to the user.
//
// Threads: one thread at a time per object.
// Errors:  Error, with the next step: for a folder or file that cannot be
//          written, a full disk, and a file that another process writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "src/net/file_descriptor.h"

namespace lockstep {

class PartialFile {
 public:
  // Opens TARGET.part, or makes it, and locks it. Its folder must exist.
  explicit PartialFile(std::filesystem::path target);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }

  void append(std::span<const std::byte> bytes);

  // Empties the file.
  void restart();

  // Gives the file its name, in the place of any other file, and closes it;
  // returns once both are on the disk.
  void finish();

  // Deletes the file.
  void remove();

 private:
  void open();
  bool lock();
  [[noreturn]] void fail(int reason) const;

  std::filesystem::path target_;
  std::filesystem::path path_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

// Deletes TARGET.part, if there is one that can be deleted and no process
// writes it.
void remove_part_of(const std::filesystem::path& target);

// Makes the folder `path`, and those above it. Error, with the next step, where
// it cannot be made or is a file.
void make_folder(const std::filesystem::path& path);

}  // namespace lockstep
