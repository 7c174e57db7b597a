#include "lockstep/net/shared_memory.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "lockstep/base/testing/file_size_limit.h"

namespace lockstep {
namespace {

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
