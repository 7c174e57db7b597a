// Tests which error leaves a group on GPUs that has lost a rank.
#include "src/comm/nccl/nccl_errors.h"

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// A CPU group that calls `check` each time that it is asked about its ranks.
class StandInForTheCpuGroup : public Backend {
 public:
  explicit StandInForTheCpuGroup(std::function<void()> check)
      : check_(std::move(check)) {}

  std::string_view name() const override { return "stand-in"; }
  bool supports(const Operation&) const override { return false; }
  Work start(const Operation&) override { return {}; }
  void abort(std::string_view) noexcept override {}
  void leave() noexcept override {}
  void check_peers() override { check_(); }

 private:
  std::function<void()> check_;
};

const std::exception_ptr kLostConnection =
    std::make_exception_ptr(NetworkError("NCCL lost a connection"));

TEST(ErrorsOfNccl, NameTheRankWhoseDeathTheKernelReportsLater) {
  int calls = 0;
  StandInForTheCpuGroup group([&] {
    if (++calls == 3) throw PeerFailure(1, "rank 1 has died");
  });
  std::exception_ptr error = kLostConnection;
  EXPECT_TRUE(came_from(group, error));
  EXPECT_THROW(std::rethrow_exception(error), PeerFailure);
}

TEST(ErrorsOfNccl, StayNcclsWhereEveryRankIsAlive) {
  int calls = 0;
  StandInForTheCpuGroup group([&] { ++calls; });
  std::exception_ptr error = kLostConnection;
  EXPECT_FALSE(came_from(group, error));
  EXPECT_THROW(std::rethrow_exception(error), NetworkError);
  EXPECT_GT(calls, 1);
}

TEST(ErrorsOfNccl, AskTheCpuGroupForNothingWhereThisRankIsAtFault) {
  StandInForTheCpuGroup group([] { FAIL() << "it was asked"; });
  std::exception_ptr error = std::make_exception_ptr(Error("out of ideas"));
  EXPECT_FALSE(came_from(group, error));
}

}  // namespace
}  // namespace lockstep
