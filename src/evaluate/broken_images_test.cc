#include "src/evaluate/broken_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

TEST(BrokenImages, OfAllRanksAreCountedOnce) {
  run_ranks("shm", 3, [](const std::shared_ptr<ProcessGroup>& group) {
    const std::vector<BrokenSample> both = {
        {.index = 7, .message = "seven\n  next: …"}};
    const std::vector<BrokenSample> second = {{.index = 9, .message = "nine"},
                                              {.index = 7, .message = "seven"},
                                              {.index = 2, .message = "two"}};
    BrokenImages images({"training image", "replaced by the next"});
    EXPECT_EQ(images.summary(*group), std::nullopt);
    if (group->rank() == 0) images.add(both);
    EXPECT_EQ(images.summary(*group),
              "1 training image was broken and replaced by the next: seven");
    if (group->rank() == 2) {
      images.add(second);
      images.add(both);
    }
    EXPECT_EQ(images.summary(*group),
              "3 training images were broken and replaced by the next, the "
              "first: two");
  });
}

}  // namespace
}  // namespace lockstep
