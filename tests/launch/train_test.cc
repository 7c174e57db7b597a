// The part of `lockstep train` without LibTorch; a script replaces the training
// program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "launched_command.h"
#include "src/base/progress_record.h"
#include "src/base/testing/test_directory.h"
#include "src/launch/worker/cpu_share.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A program in place of lockstep-train.
class TrainProgram {
 public:
  explicit TrainProgram(const std::string& script) {
    std::ofstream(path()) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path(), std::filesystem::perms::owner_all);
  }
  TrainProgram(const TrainProgram&) = delete;
  TrainProgram& operator=(const TrainProgram&) = delete;

  std::string path() const { return folder_ / "program"; }

  CommandResult run(std::vector<std::string> arguments,
                    std::vector<std::string> environment = {}) const {
    arguments.insert(arguments.begin(), "train");
    environment.push_back("LOCKSTEP_TRAIN_PROGRAM=" + path());
    return run_lockstep(arguments, environment);
  }

 private:
  TestDirectory folder_;
};

TEST(Train, HandsTheFlagsToEveryRank) {
  const TrainProgram program("echo $WORLD_SIZE: \"$@\"");
  const CommandResult result =
      program.run({"-n", "2", "--epochs", "1", "--lr=0.1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(sorted_lines(result.out),
              ElementsAre("[rank 0] 2: -n 2 --epochs 1 --lr=0.1",
                          "[rank 1] 2: -n 2 --epochs 1 --lr=0.1"));
}

TEST(Train, SaysHowToGoOnFromTheCheckpointsOfARunThatFailed) {
  const TestDirectory made;
  const std::string folder = made / "the run's";
  std::filesystem::create_directory(folder);
  const TrainProgram program(
      "for folder; do :; done; [ -z \"$SAVES\" ] || "
      ": >\"$folder/checkpoint-000200.safetensors\"; kill -9 $$");
  const std::vector<std::string> arguments{
      "-n", "1", "--resume", "old", "--checkpoint-dir", folder};
  // Earlier files do not belong to this run.
  std::ofstream(folder + "/checkpoint-000100.safetensors") << "before";
  EXPECT_THAT(program.run(arguments).err, Not(HasSubstr("to go on")));
  const std::string err = program.run(arguments, {"SAVES=1"}).err;
  EXPECT_THAT(
      err, HasSubstr("to go on: lockstep train -n 1 --checkpoint-dir "
                     "'" +
                     made.path().string() + "/the run'\\''s' --resume auto\n"));
  // A shell parses that line correctly.
  const std::string words = err.substr(err.find("lockstep train -n"));
  const CommandResult echoed = run_lockstep(
      {"run", "sh", "-c", "printf '%s|' " + words.substr(0, words.find('\n'))});
  EXPECT_EQ(echoed.out, "lockstep|train|-n|1|--checkpoint-dir|" + folder +
                            "|--resume|auto|");
}

// The kinds of run that fail beside checkpoints which existed before.
TEST(Train, SaysHowToGoOnOnlyFromCheckpointsThatAreTheRuns) {
  const TestDirectory made;
  const std::string folder = made.path().string();
  std::ofstream(folder + "/checkpoint-000100.safetensors") << "before";
  // Takes the lock as FolderLock does, for process $OWNER or itself.
  const TrainProgram program(
      "for folder; do :; done; "
      "echo \"process ${OWNER:-$$} on $(uname -n)\" >\"$folder/.lock\"; "
      "[ -z \"$SAVES\" ] || : >\"$folder/checkpoint-000200.safetensors\"; "
      "eval \"$ENDS\"");
  const auto hint_of = [&](std::vector<std::string> flags,
                           const std::vector<std::string>& environment) {
    std::filesystem::remove(folder + "/checkpoint-000200.safetensors");
    flags.insert(flags.end(), {"-n", "1", "--checkpoint-dir", folder});
    const CommandResult result = program.run(flags, environment);
    EXPECT_NE(result.exit_code, 0);
    return result.err.find("to go on:") != std::string::npos;
  };
  const std::string refused = "ENDS=exit 1";
  const std::string killed = "ENDS=kill -9 $$";
  EXPECT_FALSE(hint_of({}, {refused}));
  EXPECT_FALSE(hint_of({"--resume", "auto"}, {refused}));
  EXPECT_TRUE(hint_of({"--resume", "auto"}, {killed}));
  EXPECT_TRUE(hint_of({}, {refused, "SAVES=1"}));
  EXPECT_FALSE(hint_of({"--no-hints"}, {refused, "SAVES=1"}));
  // Another run saves meanwhile.
  EXPECT_FALSE(hint_of({}, {refused, "SAVES=1", "OWNER=1"}));
  EXPECT_FALSE(hint_of({"--resume", "auto"}, {killed, "OWNER=1"}));
  // Rank 0 reports the start of the run once it has resumed.
  EXPECT_TRUE(hint_of({"--resume", "auto"},
                      {"ENDS=echo '" + encode_progress(StartRecord{}) +
                       "' >/proc/self/fd/$LOCKSTEP_PROGRESS_FD; exit 1"}));
}

TEST(Train, RefusesAPartOfARanksEnvironment) {
  const TrainProgram program("echo started");
  for (const auto& [set, missing] :
       {std::pair("WORLD_SIZE=4", "RANK is not"),
        std::pair("RANK=0", "WORLD_SIZE is not")}) {
    const CommandResult result = program.run({}, {set});
    EXPECT_EQ(result.exit_code, 2) << set;
    EXPECT_EQ(result.out, "") << set;
    EXPECT_THAT(result.err, HasSubstr(missing));
  }
  const CommandResult mpi = program.run({}, {"OMPI_COMM_WORLD_RANK=1"});
  EXPECT_EQ(mpi.exit_code, 2);
  EXPECT_THAT(mpi.err,
              HasSubstr("of mpirun has a rank but no number of ranks"));
}

TEST(Train, UsesEveryCoreUnlessTold) {
  const TrainProgram program("echo $WORLD_SIZE");
  const int cores = usable_cores();
  const std::string out = program.run({}).out;
  const auto lines = sorted_lines(out);
  EXPECT_LE(static_cast<int>(lines.size()), cores);
  EXPECT_GT(2 * static_cast<int>(lines.size()), std::min(cores, 8));
}

TEST(Train, MakesThreadsOfCoresToSpare) {
  const TrainProgram program("echo $OMP_NUM_THREADS");
  EXPECT_EQ(program.run({"-n", "1"}).out,
            std::to_string(usable_cores()) + "\n");
  EXPECT_EQ(program.run({"-n", "1"}, {"OMP_NUM_THREADS=3"}).out, "3\n");
  EXPECT_EQ(
      program.run({"-n", "1", "--threads", "5"}, {"OMP_NUM_THREADS=3"}).out,
      "5\n");
}

TEST(Train, LaunchesNothingOnBadInput) {
  const TrainProgram program("echo launched");
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"--batch-size", "0"},
           {"--global-batch-size", "100", "-n", "8"},
           {"--model", "conv-net"},
           {"--dataset", "minst"},
           {"--optimizer", "sdg"},
           {"--epoch", "3"}}) {
    const CommandResult result = program.run(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, StartsWith("lockstep: "));
    EXPECT_EQ(sorted_lines(result.err).size(), 1u) << result.err;
  }
}

TEST(Train, SaysWhichRankFailed) {
  const TrainProgram program(
      "[ $RANK = 0 ] || { echo no data; exit 1; }; "
      "exec sleep 1000");
  const CommandResult result = program.run({"-n", "2"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 1 of 2 exited with code 1"),
                                HasSubstr("    no data\n")));
}

TEST(Train, SaysWhatToDoWhereItsProgramIsMissing) {
  const CommandResult result = run_lockstep(
      {"train", "-n", "2"}, {"LOCKSTEP_TRAIN_PROGRAM=/no/such/program"});
  EXPECT_EQ(result.exit_code, 127);
  EXPECT_THAT(result.err, HasSubstr("cannot start \"/no/such/program\""));
}

TEST(Version, IsPrinted) {
  EXPECT_THAT(run_lockstep({"version"}).out, StartsWith("lockstep "));
  EXPECT_THAT(run_lockstep({"--help"}).out, HasSubstr("lockstep COMMAND"));
}

}  // namespace
}  // namespace lockstep
