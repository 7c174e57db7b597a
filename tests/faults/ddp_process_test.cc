// Ranks, as processes, that train under DistributedDataParallel while one of
// them dies, fails or lacks a resource; without a fault every run gives the
// same bits. Deadlines are long: they only keep a failing test from hanging.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "src/base/testing/test_timeout.h"
#include "src/comm/testing/rank_processes.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr int kGotAnError = 10;
constexpr int kRanks = 3;

// A rank's output and exit status.
struct End {
  int code;
  std::string output;

  // The first line that begins with `head`, without `head`.
  std::string line(const std::string& head) const {
    const std::size_t begin = ("\n" + output).find("\n" + head);
    if (begin == std::string::npos) return "nothing of " + head + output;
    const std::size_t end = output.find('\n', begin);
    return output.substr(begin + head.size(), end - begin - head.size());
  }
};

using Variables = std::vector<std::string>;

std::vector<End> run(const std::string& name, const Variables& variables = {},
                     int ranks = kRanks) {
  RankProcesses processes(ranks, {LOCKSTEP_DDP_RANK, name}, variables);
  std::vector<End> ends;
  for (int rank = 0; rank < ranks; ++rank) {
    const int code = processes.wait_for_end(rank, kTimeout);
    ends.push_back({code, processes.output(rank)});
  }
  return ends;
}

// The final weights, which must be the same on all ranks. Peers can access
// `in_place` of the net's 8 gradients directly.
std::string weights_of(const std::vector<End>& ends,
                       const std::string& in_place = "2 of 8") {
  std::set<std::string> weights;
  for (const End& end : ends) {
    EXPECT_EQ(end.code, 0) << end.output;
    EXPECT_EQ(end.line("in place "), in_place);
    EXPECT_EQ(end.line("nan "), "0 of 399368");
    weights.insert(end.line("weights "));
  }
  EXPECT_EQ(weights.size(), 1u);
  return *weights.begin();
}

// The weights of a run without a fault.
const std::string& usual_weights() {
  static const std::string weights = weights_of(run("train"));
  return weights;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Expects that every rank except the victim got an error about the victim.
void expect_peer_failures(const std::vector<End>& ends, std::size_t victim) {
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (rank == victim) continue;
    const std::string number = std::to_string(victim);
    EXPECT_EQ(ends[rank].code, kGotAnError) << ends[rank].output;
    EXPECT_THAT(ends[rank].output,
                AllOf(HasSubstr("error PeerFailure " + number + "\n"),
                      ContainsRegex("all_reduce #[0-9]+"),
                      HasSubstr("gradients, bucket"),
                      HasSubstr("rank " + number + " on " + host_name())));
  }
}

TEST(TrainingInProcesses, GivesTheSameBitsRunAfterRun) {
  EXPECT_EQ(weights_of(run("train")), usual_weights());
  for (const int ranks : {2, 4})
    EXPECT_EQ(weights_of(run("train", {}, ranks)),
              weights_of(run("train", {}, ranks)))
        << ranks << " ranks";
}

TEST(TrainingInProcesses, GivesTheSameBitsWhenShardedInOnePass) {
  EXPECT_EQ(weights_of(run("train", {"ONE_PASS=1"})), usual_weights());
}

TEST(TrainingInProcesses, IsNotChangedByAForkInTheMiddleOfAPass) {
  for (const char* victim : {"VICTIM=0", "VICTIM=2"})
    EXPECT_EQ(weights_of(run("fork_in_backward", {victim})), usual_weights());
}

TEST(TrainingInProcesses, SpreadsANanToEveryRankAlike) {
  const auto ends = run("nan_in_a_batch");
  for (const End& end : ends) {
    EXPECT_EQ(end.code, 0) << end.output;
    EXPECT_EQ(end.line("nan "), "399368 of 399368");
    EXPECT_EQ(end.line("weights "), ends[0].line("weights "));
  }
}

// All or some gradients are staged, on all ranks or on one.
TEST(AHeapThatIsTooSmall, ChangesNoBit) {
  EXPECT_EQ(weights_of(run("train", {"LOCKSTEP_HEAP_BYTES=0"}), "0 of 8"),
            usual_weights());
  EXPECT_EQ(weights_of(run("train", {"LOCKSTEP_HEAP_BYTES=100000"}), "0 of 8"),
            usual_weights());
  for (const char* bytes : {"3000000", "5000000"}) {
    const std::string heap = std::string("LOCKSTEP_HEAP_BYTES=") + bytes;
    EXPECT_EQ(run("train", {heap})[0].line("weights "), usual_weights());
  }
}

TEST(AHeapThatIsTooSmall, ChangesNoBitOfAStepInOnePass) {
  for (const char* bytes : {"0", "100000", "2000000", "5000000"}) {
    const std::string heap = std::string("LOCKSTEP_HEAP_BYTES=") + bytes;
    for (const End& end : run("train", {heap, "ONE_PASS=1"}))
      EXPECT_EQ(end.line("weights "), usual_weights()) << bytes << end.output;
  }
}

TEST(AHeapThatIsTooSmall, OnOneRankChangesNoBit) {
  for (const char* bytes : {"0", "100000", "3000000"})
    for (const End& end :
         run("train_with_unequal_heaps", {std::string("VICTIM_HEAP=") + bytes}))
      EXPECT_EQ(end.line("weights "), usual_weights()) << end.output;
}

// The address space is smaller than a heap of 16 GiB.
TEST(ALimitOnAddressSpace, AtTheStartChangesNoBit) {
  EXPECT_EQ(weights_of(run("limited_at_start", {"LIMIT=as", "MOST=2000000000"}),
                       "0 of 8"),
            usual_weights());
}

// There is room for this rank's heap, but not for its peers' heaps.
TEST(ALimitOnAddressSpace, OfOneRankAtTheStartChangesNoBit) {
  for (const End& end :
       run("limited_at_start", {"LIMIT=as", "MOST=6000000000", "LIMITED=victim",
                                "LOCKSTEP_HEAP_BYTES=4000000000"}))
    EXPECT_EQ(end.line("weights "), usual_weights()) << end.output;
}

TEST(ALimitOnAddressSpace, InTheMiddleChangesNoBit) {
  for (const char* name : {"limited_in_the_middle", "fork_in_backward"})
    EXPECT_EQ(weights_of(run(name, {"LIMIT=as", "MOST=100000000"})),
              usual_weights());
}

TEST(ALimitOnAddressSpace, ThatATensorDoesNotFitIsAnErrorOfThatRank) {
  const auto ends =
      run("allocate_too_much_in_backward", {"LIMIT=as", "MOST=100000000"});
  EXPECT_EQ(ends[1].code, kGotAnError);
  EXPECT_THAT(ends[1].output, HasSubstr("can't allocate memory"));
  expect_peer_failures(ends, 1);
}

TEST(ALimitOnFileSize, BelowTheHeapsChangesNoBit) {
  EXPECT_EQ(
      weights_of(run("limited_at_start", {"LIMIT=fsize", "MOST=100000000"}),
                 "0 of 8"),
      usual_weights());
}

TEST(ALimitOnFileSize, BelowWhatAGroupNeedsIsAnErrorThatSaysWhatToDo) {
  for (const char* limited : {"LIMITED=all", "LIMITED=victim"})
    for (const End& end :
         run("limited_at_start", {"LIMIT=fsize", limited, "VICTIM=0"})) {
      EXPECT_EQ(end.code, kGotAnError);
      EXPECT_THAT(end.output, HasSubstr("ulimit -f"));
    }
}

// Output at a group's failure must not end the rank.
TEST(ALimitOnFileSize, EndsNoRankThatRecordsAnError) {
  expect_peer_failures(
      run("die_in_backward",
          {"LIMIT=fsize",
           "LOCKSTEP_DUMP_DIR=" + testing::TempDir() + "/ddp_process_test"}),
      1);
}

TEST(ALimitOnFileSize, InTheMiddleChangesNoBit) {
  EXPECT_EQ(weights_of(run("limited_in_the_middle", {"LIMIT=fsize"})),
            usual_weights());
}

TEST(ARankThatDiesInBackward, IsNamedByTheOthersWithItsHostAndTheirCall) {
  for (std::size_t victim = 0; victim < kRanks; ++victim) {
    const auto ends =
        run("die_in_backward", {"VICTIM=" + std::to_string(victim)});
    EXPECT_EQ(ends[victim].code, 128 + SIGKILL);
    expect_peer_failures(ends, victim);
  }
}

// The others make their heaps private, which needs no address space.
TEST(ARankThatDiesInBackward, IsNamedWhereAddressSpaceIsShort) {
  const auto ends = run("die_in_backward", {"LIMIT=as", "MOST=100000000"});
  expect_peer_failures(ends, 1);
  for (const End& end : ends)
    EXPECT_THAT(end.output, Not(HasSubstr("could not")));
}

TEST(ARankThatThrowsInBackward, IsNamedByTheOthersAndKeepsItsOwnError) {
  for (std::size_t victim = 0; victim < kRanks; ++victim) {
    const auto ends =
        run("throw_in_backward", {"VICTIM=" + std::to_string(victim)});
    EXPECT_EQ(ends[victim].code, kGotAnError);
    EXPECT_THAT(ends[victim].output,
                HasSubstr("error Error -1\na fault of the user's\n"));
    expect_peer_failures(ends, victim);
    for (std::size_t rank = 0; rank < kRanks; ++rank)
      if (rank != victim) {
        EXPECT_THAT(ends[rank].output, HasSubstr("left its backward pass"));
      }
  }
}

TEST(ARankThatMakesAStepMore, IsToldWhoHasLeft) {
  for (const std::size_t victim : {0, 1}) {
    const auto ends = run("extra_step", {"VICTIM=" + std::to_string(victim)});
    for (std::size_t rank = 0; rank < kRanks; ++rank)
      EXPECT_EQ(ends[rank].code, rank == victim ? kGotAnError : 0)
          << ends[rank].output;
    EXPECT_THAT(ends[victim].output,
                AllOf(HasSubstr("error PeerFailure"), HasSubstr("is gone")));
  }
}

TEST(ARankThatMakesAStepMore, IsAMismatchWhereTheOthersEvaluate) {
  for (const End& end : run("extra_step_before_evaluation")) {
    EXPECT_EQ(end.code, kGotAnError);
    EXPECT_THAT(end.output, AllOf(HasSubstr("error Mismatch"),
                                  ContainsRegex("broadcast #.* by rank 1"),
                                  HasSubstr("one runs a step more")));
  }
}

}  // namespace
}  // namespace lockstep
