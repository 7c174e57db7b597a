// How the ranks of a wire group find each other, one of them alone.
#include "lockstep/comm/wire/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

TEST(AMesh, SaysWhichRanksOfTheJobDidNotCome) {
  const auto store = open_store("memory:");
  const GroupIdentity identity{
      .name = "[5,7,9]", .rank = 0, .size = 3, .members = {5, 7, 9}};
  try {
    connect_mesh(identity, *store, "127.0.0.1", 20ms);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), HasSubstr("missing: rank 1 (rank 7 of the job), "
                                        "rank 2 (rank 9 of the job)"));
  }
}

}  // namespace
}  // namespace lockstep
