#include "src/comm/nccl/gpu_plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/base/error.h"
#include "src/base/testing/test_directory.h"
#include "src/base/text_file.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_of(const Settings& settings) {
  try {
    load_gpu_table(settings);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "found";
}

TEST(GpuPlugin, ThatWasNotBuiltIsReportedWithTheNextStep) {
  const GpuStatus status = gpu_status({});
  if (status.plugin) GTEST_SKIP() << "it was built";
  EXPECT_THAT(
      error_of({}),
      AllOf(HasSubstr("\"nccl\" is not available: liblockstep_nccl.so is "),
            HasSubstr("\n  next:    build Lockstep with ./dev build --cuda"),
            HasSubstr("LOCKSTEP_PLUGIN_PATH")));
  EXPECT_THAT(status.detail, HasSubstr("liblockstep_nccl.so"));
  EXPECT_THAT(status.next, HasSubstr("./dev build --cuda"));
}

TEST(GpuPlugin, OfAnotherVersionIsPassedOver) {
  const TestDirectory made;
  const std::string file = std::string(made.path()) + "/liblockstep_nccl.so";
  std::filesystem::copy(LOCKSTEP_OLDER_PLUGIN, file);
  Settings settings;
  settings.plugin_path = made.path();
  if (gpu_status({}).plugin)
    EXPECT_EQ(error_of(settings), "found");
  else
    EXPECT_THAT(error_of(settings),
                HasSubstr(file + " is of another version of Lockstep"));
}

}  // namespace
}  // namespace lockstep
