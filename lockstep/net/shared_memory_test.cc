#include "lockstep/net/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Limits the size of files of this process, for as long as it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

// The kernel's own way is a signal that ends the program.
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

}  // namespace
}  // namespace lockstep
