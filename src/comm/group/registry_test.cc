// What the ranks of a job must have in common.
#include "src/comm/group/registry.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "src/base/testing/error_text.h"
#include "src/base/version.h"

namespace lockstep {
namespace {

TEST(Registry, ComparesTheVersionAndTheSettingsOfAJob) {
  Settings settings;
  settings.wire = "gloo";
  std::map<std::string, std::string> compared;
  for (const JobField& field : settings_of_job("shm", settings))
    compared[field.name] = field.value;
  EXPECT_EQ(compared["the version of Lockstep"], version());
  EXPECT_EQ(compared["LOCKSTEP_BACKEND"], "shm");
  EXPECT_EQ(compared["LOCKSTEP_WIRE"], "gloo");
  EXPECT_EQ(compared["LOCKSTEP_CHECK"], name_of(settings.check));
}

// Issue 43, point 17.
TEST(Registry, NamesTheVariableThatNamesAnUnknownBackend) {
  Settings settings;
  settings.backend = "glo";
  EXPECT_EQ(error_text([&] { cpu_backend_name("auto", settings); }),
            "the environment variable LOCKSTEP_BACKEND: unknown backend "
            "\"glo\": did you mean \"gloo\"? Known: auto, nccl, shm, hybrid, "
            "gloo, mpi, reference");
  EXPECT_EQ(error_text([&] {
              cpu_backend_name("rings", settings);
            }).rfind("unknown backend \"rings\"", 0),
            0);
  EXPECT_EQ(cpu_backend_name("shm", settings), "shm");
}

}  // namespace
}  // namespace lockstep
