// A file system that is soon full, for tests of full disks. A test begins with
// LOCKSTEP_NEEDS_SMALL_FILE_SYSTEM(directory, "64k").
//
// Threads: one test per object.
#pragma once

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <filesystem>
#include <string>

// Mounts a file system of `bytes` in the folder of a TestDirectory until the
// test ends.
#define LOCKSTEP_NEEDS_SMALL_FILE_SYSTEM(directory, bytes)                   \
  const ::lockstep::SmallFileSystem small_system((directory).path(), bytes); \
  if (!small_system) GTEST_SKIP() << "a small file system needs root"

namespace lockstep {

class SmallFileSystem {
 public:
  SmallFileSystem(const std::filesystem::path& folder, const std::string& bytes)
      : folder_(folder),
        mounted_(::mount("none", folder.c_str(), "tmpfs", 0,
                         ("size=" + bytes).c_str()) == 0) {}
  ~SmallFileSystem() {
    if (!mounted_) return;
    EXPECT_EQ(::umount2(folder_.c_str(), MNT_DETACH), 0);
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;

  explicit operator bool() const { return mounted_; }

 private:
  std::filesystem::path folder_;
  bool mounted_;
};

}  // namespace lockstep
