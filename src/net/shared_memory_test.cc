#include "src/net/shared_memory.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "lockstep/base/error.h"
#include "src/base/testing/file_size_limit.h"

namespace lockstep {
namespace {

// Without a check the kernel would end the program by a signal.
TEST(SharedMemory, PastTheLimitOnFilesIsAnError) {
  const FileSizeLimit limit(8192);
  EXPECT_EQ(map_shared_memory(create_shared_memory("small", 8192))->size(),
            std::size_t{8192});
  try {
    create_shared_memory("large", 12288);
    FAIL() << "it was created";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.error_number(), EFBIG);
  }
}

// Issue 19: with vm.memfd_noexec=2 Linux 6.3 to 6.5 refuse memory without this
// flag.
TEST(SharedMemory, IsNotExecutable) {
  constexpr unsigned kNotExecutable = 8;  // MFD_NOEXEC_SEAL
  const FileDescriptor probe(::memfd_create("probe", kNotExecutable));
  if (!probe) GTEST_SKIP() << "needs Linux 6.3";
  struct stat info {};
  ASSERT_EQ(::fstat(create_shared_memory("small", 8192).get(), &info), 0);
  EXPECT_EQ(info.st_mode & 0111, 0u);
}

// Issue 19. The setting belongs to a pid namespace: a child gets its own
// namespace.
TEST(SharedMemory, IsThereWhereMemoryMustNotBeExecutable) {
  constexpr int kCannotTell = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(kCannotTell);
    const pid_t first = ::fork();
    if (first == 0) {
      std::ofstream setting("/proc/sys/vm/memfd_noexec");
      setting << 2 << std::flush;
      if (!setting) ::_exit(kCannotTell);
      // The setting is in force: the kernel refuses executable memory.
      constexpr unsigned kExecutable = 16;  // MFD_EXEC
      if (::memfd_create("executable", kExecutable) >= 0) ::_exit(kCannotTell);
      try {
        map_shared_memory(create_shared_memory("small", 8192))->data()[0] =
            std::byte{1};
      } catch (const SystemError&) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(first, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kCannotTell)
    GTEST_SKIP() << "needs Linux 6.3 and the right to make a pid namespace";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace lockstep
