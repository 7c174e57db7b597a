#include <gtest/gtest.h>

#include <array>
#include <chrono>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

// Bytes that encode their length and their rank, so that a mix-up shows.
Bytes object_of(int rank, std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + i / 251 +
                                      static_cast<std::size_t>(rank) * 31);
  return bytes;
}

class Objects : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Backends, Objects, testing::Values("reference"),
                         [](const auto& backend) {
                           return std::string(backend.param);
                         });

TEST_P(Objects, OfTheRootReachEveryRankWhateverTheirSize) {
  run_ranks(GetParam(), 3, [](const std::shared_ptr<ProcessGroup>& group) {
    int root = 0;
    for (const std::size_t size : {0UL, 1UL, 63UL, 20000UL, 3UL << 20}) {
      // The other ranks' objects are ignored, and have another size.
      const Bytes mine =
          object_of(group->rank(), size + (group->rank() == root ? 0 : 5));
      EXPECT_EQ(broadcast_bytes(*group, mine, root), object_of(root, size))
          << size << " bytes from rank " << root;
      root = (root + 1) % group->size();
    }
  });
}

TEST_P(Objects, OfAllRanksReachTheRootInRankOrder) {
  run_ranks(GetParam(), 3, [&](const std::shared_ptr<ProcessGroup>& group) {
    for (int root = 0; root < group->size(); ++root)
      for (const std::size_t size : {0UL, 1UL, 20000UL}) {
        const auto size_of = [&](int rank) {
          return size * static_cast<std::size_t>(rank + 1);
        };
        const auto found = gather_bytes(
            *group, object_of(group->rank(), size_of(group->rank())), root);
        if (group->rank() != root) {
          EXPECT_TRUE(found.empty());
          continue;
        }
        ASSERT_EQ(found.size(), 3U);
        for (int rank = 0; rank < 3; ++rank)
          EXPECT_EQ(found[static_cast<std::size_t>(rank)],
                    object_of(rank, size_of(rank)));
      }
    EXPECT_THROW(gather_bytes(*group, {}, 3), InvalidArgument);
  });
}

TEST_P(Objects, OfTheRootReachARankEach) {
  run_ranks(GetParam(), 3, [&](const std::shared_ptr<ProcessGroup>& group) {
    const int me = group->rank();
    for (int root = 0; root < group->size(); ++root) {
      std::vector<Bytes> objects(me == root ? 3 : 0);
      for (std::size_t i = 0; i < objects.size(); ++i)
        objects[i] = object_of(static_cast<int>(i), 5000 * i);
      EXPECT_EQ(scatter_bytes(*group, objects, root),
                object_of(me, 5000 * static_cast<std::size_t>(me)));
    }
    // Every rank gets the error, and the group still works.
    const std::vector<Bytes> too_few(me == 1 ? 2 : 3);
    EXPECT_THROW(scatter_bytes(*group, too_few, 1), InvalidArgument);
    EXPECT_NO_THROW(group->barrier().wait());
  });
}

TEST_P(Objects, OfAllRanksReachEveryRankInRankOrder) {
  const std::vector<std::vector<std::size_t>> rounds{
      {0, 0, 0}, {1, 1, 1}, {0, 1, 100000}, {3UL << 20, 0, 17}, {5, 0, 0}};
  run_ranks(GetParam(), 3, [&](const std::shared_ptr<ProcessGroup>& group) {
    for (const auto& sizes : rounds) {
      const auto me = static_cast<std::size_t>(group->rank());
      const auto all =
          all_gather_bytes(*group, object_of(group->rank(), sizes[me]));
      ASSERT_EQ(all.size(), sizes.size());
      for (std::size_t r = 0; r < sizes.size(); ++r)
        EXPECT_EQ(all[r], object_of(static_cast<int>(r), sizes[r]));
    }
  });
}

TEST_P(Objects, OfARankAloneComeBack) {
  run_ranks(GetParam(), 1, [](const std::shared_ptr<ProcessGroup>& group) {
    const Bytes object = object_of(0, 10);
    EXPECT_EQ(broadcast_bytes(*group, object, 0), object);
    EXPECT_EQ(all_gather_bytes(*group, object), std::vector<Bytes>{object});
  });
}

TEST_P(Objects, OfARootOutsideTheGroupAreRefused) {
  run_ranks(GetParam(), 1, [](const std::shared_ptr<ProcessGroup>& group) {
    EXPECT_THROW(broadcast_bytes(*group, {}, 1), InvalidArgument);
  });
}

TEST_P(Objects, HeedTheTimeoutOfTheCall) {
  // A rank that drops its group leaves it.
  std::array<std::shared_ptr<ProcessGroup>, 2> kept;
  run_ranks(GetParam(), 2, [&](const std::shared_ptr<ProcessGroup>& group) {
    kept.at(static_cast<std::size_t>(group->rank())) = group;
    if (group->rank() == 0) {
      EXPECT_THROW(broadcast_bytes(*group, {}, 1,
                                   {.timeout = std::chrono::milliseconds(20)}),
                   Timeout);
    }
  });
}

}  // namespace
}  // namespace lockstep
