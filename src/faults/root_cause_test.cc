#include "src/faults/root_cause.h"

#include <gtest/gtest.h>

#include <csignal>
#include <stdexcept>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

RankEnd exited(int code) { return {.status = {.code = code}}; }
RankEnd killed(int signal) { return {.status = {.signal = signal}}; }
RankEnd missed_a_peer(RankEnd end) {
  end.note = FaultNote{.kind = FaultNote::Kind::kPeerGone};
  return end;
}
RankEnd told_of_an_error(RankEnd end) {
  end.note = FaultNote{.kind = FaultNote::Kind::kPeerError};
  return end;
}

std::size_t cause_of(const std::vector<RankEnd>& ends) {
  return root_cause(ends);
}

TEST(RootCause, IsTheRankThatASignalKilled) {
  EXPECT_EQ(cause_of({exited(1), killed(SIGKILL), exited(2)}), 1);
}

TEST(RootCause, IsTheFirstToEndAmongEquals) {
  EXPECT_EQ(cause_of({exited(3), exited(2)}), 0);
  EXPECT_EQ(cause_of({killed(SIGSEGV), killed(SIGKILL)}), 0);
}

// A C++ program that ends by an exception.
TEST(RootCause, CountsAnAbortAsAnEndByItself) {
  EXPECT_EQ(cause_of({exited(3), killed(SIGABRT)}), 0);
}

TEST(RootCause, IsNoRankThatMissedAPeerHoweverItEnded) {
  EXPECT_EQ(cause_of({missed_a_peer(killed(SIGABRT)),
                      missed_a_peer(killed(SIGSEGV)), exited(3)}),
            2);
}

TEST(RootCause, IsNoRankThatWasToldOfAnothersError) {
  EXPECT_EQ(cause_of({told_of_an_error(exited(1)), exited(1)}), 1);
}

TEST(RootCause, IsTheFirstToEndIfAllAreConsequences) {
  EXPECT_EQ(
      cause_of({missed_a_peer(exited(1)), missed_a_peer(killed(SIGKILL))}), 0);
}

TEST(RootCause, IsTheRankThatOthersNameIfAllAreConsequences) {
  std::vector<RankEnd> ends(3, missed_a_peer(exited(1)));
  for (int i = 0; i < 3; ++i) {
    ends[static_cast<std::size_t>(i)].rank = i + 4;
    ends[static_cast<std::size_t>(i)].note->culprit = 5;
  }
  EXPECT_EQ(cause_of(ends), 1);
  ends[1].rank = -1;
  EXPECT_EQ(cause_of(ends), 0);
}

TEST(RootCause, MayComeLateWhileAllAreConsequences) {
  const auto time_for = [](const std::vector<RankEnd>& ends) {
    return time_for_cause(ends);
  };
  EXPECT_EQ(time_for({missed_a_peer(exited(1))}), 300ms);
  EXPECT_EQ(time_for({missed_a_peer(exited(1)), told_of_an_error(exited(1))}),
            3000ms);
  EXPECT_EQ(time_for({missed_a_peer(exited(1)), exited(1)}), 0ms);
  EXPECT_EQ(time_for({}), 0ms);
}

TEST(RootCause, OfErrorsIsTheFirstThatIsNoPeerFailure) {
  const auto gone = std::make_exception_ptr(PeerFailure(1, "gone"));
  const auto bad = std::make_exception_ptr(std::runtime_error("bad"));
  const auto worse = std::make_exception_ptr(std::runtime_error("worse"));
  const auto cause_of = [](const std::vector<std::exception_ptr>& errors) {
    return root_cause(errors);
  };
  EXPECT_EQ(cause_of({nullptr, gone, bad, worse}), bad);
  EXPECT_EQ(cause_of({gone, nullptr}), gone);
  EXPECT_EQ(cause_of({nullptr, nullptr}), nullptr);
}

}  // namespace
}  // namespace lockstep
