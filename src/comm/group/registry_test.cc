// What the ranks of a job must have in common.
#include "src/comm/group/registry.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

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

}  // namespace
}  // namespace lockstep
