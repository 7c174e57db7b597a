#include "apps/cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <utility>
#include <vector>

#include "src/base/testing/error_text.h"
#include "src/launch/launcher/launcher.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Request parse(const std::vector<const char*>& arguments, int cores = 4) {
  return parse_command_line(arguments, cores);
}

RunOptions parse_run(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "run");
  return std::get<RunOptions>(parse(arguments));
}

std::string error_of(const std::vector<const char*>& arguments) {
  const std::string text = error_text([&] { parse(arguments); });
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  return text;
}

std::string help_of(const std::vector<const char*>& arguments) {
  return std::get<HelpRequest>(parse(arguments)).text;
}

// A variable of the environment while the object lives.
class Variable {
 public:
  Variable(std::string name, const char* value) : name_(std::move(name)) {
    ::setenv(name_.c_str(), value, 1);
  }
  ~Variable() { ::unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const std::string name_;
};

TEST(CommandLine, RunTakesItsFlagsAndLeavesTheProgramsAlone) {
  const RunOptions options = parse_run(
      {"-n", "2", "--bind", "none", "--log-dir", "logs", "--master-port=29500",
       "./program", "-n", "7", "--help", "--", "x"});
  EXPECT_EQ(options.workers, 2);
  EXPECT_EQ(options.nodes.master_port, 29500);
  EXPECT_EQ(options.launch.bind, "none");
  EXPECT_EQ(options.launch.log_dir, "logs");
  EXPECT_THAT(options.command,
              ElementsAre("./program", "-n", "7", "--help", "--", "x"));
}

TEST(CommandLine, RunTakesWhatFollowsADeath) {
  const RunOptions options = parse_run({"-n", "4", "--in-place", "--min-ranks",
                                        "2", "--max-restarts=3", "./program"});
  EXPECT_TRUE(options.reform.in_place);
  EXPECT_EQ(options.reform.min_ranks, 2);
  EXPECT_EQ(options.nodes.max_restarts, 3);
  EXPECT_FALSE(parse_run({"./program"}).reform.in_place);
}

TEST(CommandLine, RunRefusesToReformInPlaceWhereItCannot) {
  EXPECT_THAT(error_of({"run", "--min-ranks", "2", "./program"}),
              HasSubstr("give --in-place too"));
  EXPECT_THAT(
      error_of({"run", "-n", "2", "--in-place", "--min-ranks", "3", "./x"}),
      HasSubstr("--min-ranks is 3, but the job has 2 ranks"));
}

TEST(CommandLine, RunTakesMoreMinRanksThanThisHostHasWhereThereAreOthers) {
  const RunOptions options =
      parse_run({"-n", "2", "--in-place", "--min-ranks", "3", "--nnodes=2",
                 "--rdzv-endpoint=a:1", "./program"});
  EXPECT_EQ(options.reform.min_ranks, 3);
}

TEST(CommandLine, TakesMpirunsNpForN) {
  const RunOptions options =
      parse_run({"--grace", "3", "-np", "2", "./program", "-np", "7"});
  EXPECT_EQ(options.workers, 2);
  EXPECT_THAT(options.command, ElementsAre("./program", "-np", "7"));
  const Request train = parse({"train", "--model", "mlp", "-np", "2"});
  EXPECT_EQ(std::get<TrainRequest>(train).options.ranks, 2);
}

TEST(CommandLine, RefusesWhatWouldBringTheHostDownWithTheLimit) {
  EXPECT_THAT(error_of({"train", "-n", "100000"}), HasSubstr("1 to 1024"));
  EXPECT_THAT(error_of({"train", "--threads", "100000"}),
              HasSubstr("1 to 1024"));
  EXPECT_THAT(error_of({"run", "-n", "100000", "true"}),
              HasSubstr("1 to 1024"));
  EXPECT_THAT(error_of({"bench", "all_reduce", "-n", "100000"}),
              HasSubstr("1 to 1024"));
}

TEST(Help, WrapsAtBlanksBelowTheDescription) {
  EXPECT_EQ(wrap_help("Usage: x\n"
                      "  --flag N    of a description that is long\n"
                      "              and is continued as it was\n"
                      "one line of plain words that go on and on and on\n",
                      34),
            "Usage: x\n"
            "  --flag N    of a description\n"
            "              that is long\n"
            "              and is continued as\n"
            "              it was\n"
            "one line of plain words that go on\n"
            "and on and on\n");
  const std::string help = help_of({"train", "--help"});
  std::istringstream lines(wrap_help(help, 70));
  for (std::string line; std::getline(lines, line);)
    EXPECT_LE(line.size(), 70u) << line;
}

// Issue 19, point 21: as long as torchrun's by default.
TEST(CommandLine, RunGivesWorkersTheGraceThatItIsTold) {
  LaunchOptions launch;
  apply(parse_run({"./program"}).launch, launch);
  EXPECT_EQ(launch.grace, std::chrono::seconds(30));
  apply(parse_run({"--grace", "2.5", "./program"}).launch, launch);
  EXPECT_EQ(launch.grace, std::chrono::milliseconds(2500));
  apply(parse_run({"--grace", "86400", "./program"}).launch, launch);
  EXPECT_EQ(launch.grace, std::chrono::hours(24));
  for (const char* wrong : {"-1", "nan", "inf", "1e9"})
    EXPECT_THAT(error_of({"run", "--grace", wrong, "./program"}),
                HasSubstr("--grace"));
}

TEST(CommandLine, RunCountsCoresAndGpusAsTorchrunDoes) {
  const auto none = [] { return 0; };
  const auto three = [] { return 3; };
  EXPECT_EQ(parse_workers("auto", 8, none), 8);
  EXPECT_EQ(parse_workers("auto", 8, three), 3);
  EXPECT_EQ(parse_workers("cpu", 8, three), 8);
  EXPECT_EQ(parse_workers("gpu", 8, three), 3);
  EXPECT_THAT(error_text([&] { parse_workers("gpu", 8, none); }),
              HasSubstr("there is no GPU that these workers could use"));
}

TEST(CommandLine, RunSaysThatOneRankMayUseEveryCore) {
  const auto none = [](const std::string&) { return std::nullopt; };
  EXPECT_THAT(note_on_threads(1, 8, none),
              HasSubstr("on each of 8 cores, where each of several ranks gets "
                        "1 thread"));
  EXPECT_EQ(note_on_threads(2, 8, none), "");
  EXPECT_EQ(note_on_threads(1, 1, none), "");
  EXPECT_EQ(note_on_threads(1, 8, [](const std::string&) { return "1"; }), "");
}

// Issue 43: one launcher refused it, and the other waited as if none served.
TEST(CommandLine, RunRefusesATokenThatIsTooLongOnEveryHost) {
  const Variable token("LOCKSTEP_TOKEN", std::string(257, 'x').c_str());
  for (const char* rank : {"0", "1"})
    EXPECT_THAT(
        error_of({"run", "--nnodes=2", "--rdzv-endpoint=a:1", "--node-rank",
                  rank, "./program"}),
        HasSubstr("LOCKSTEP_TOKEN, has 257 bytes; it may have at most 256"));
}

TEST(CommandLine, StatusTakesAJob) {
  EXPECT_EQ(std::get<StatusOptions>(parse({"status"})).whose,
            JobsOf::kThisUser);
  EXPECT_EQ(std::get<StatusOptions>(parse({"status", "--all"})).whose,
            JobsOf::kAllUsers);
  EXPECT_EQ(std::get<StatusOptions>(parse({"status", "4711"})).job, 4711);
  EXPECT_THAT(error_of({"status", "mine"}), HasSubstr("mine"));
}

TEST(CommandLine, RunIsOneWorkerUnlessTold) {
  const RunOptions options = parse_run({"true"});
  EXPECT_EQ(options.workers, 1);
  EXPECT_EQ(options.nodes.master_port, 0);
  EXPECT_EQ(options.launch.bind, "auto");
}

TEST(CommandLine, RunTakesTorchrunsSpellings) {
  EXPECT_EQ(parse_run({"--nproc-per-node", "3", "true"}).workers, 3);
  EXPECT_EQ(parse_run({"--nproc_per_node=3", "true"}).workers, 3);
  EXPECT_EQ(parse_run({"-n4", "--standalone", "true"}).workers, 4);
  EXPECT_EQ(parse_run({"-n", "cpu", "--nnodes", "1", "true"}).workers, 4);
  const RunOptions options =
      parse_run({"--log_dir", "a", "--max_restarts=2", "--no_fold",
                 "--virtual_local_rank", "./x", "--log_dir", "b"});
  EXPECT_EQ(options.launch.log_dir, "a");
  EXPECT_EQ(options.nodes.max_restarts, 2);
  EXPECT_EQ(options.streams.fold, false);
  EXPECT_TRUE(options.virtual_local_rank);
  EXPECT_THAT(options.command, ElementsAre("./x", "--log_dir", "b"));
  const Request train = parse({"train", "--batch_size", "48"});
  EXPECT_EQ(std::get<TrainRequest>(train).options.batch_size, 48);
}

TEST(CommandLine, RunTakesTorchrunsFlags) {
  const RunOptions options = parse_run(
      {"--role", "trainer", "--shutdown-timeout=7", "--monitor-interval=0.5",
       "--start-method", "fork", "--event-log-handler=null",
       "--signals-to-handle", "SIGTERM,SIGINT", "./program"});
  EXPECT_EQ(options.role, "trainer");
  EXPECT_EQ(options.launch.grace, 7);
  EXPECT_FALSE(options.virtual_local_rank);
  for (const char* flag :
       {"--event-log-handler=console", "--logs-specs=mine",
        "--duplicate-stdout-filters=a", "--duplicate_stderr_filters=a",
        "--numa-binding=node", "--signals-to-handle=SIGTERM,SIGUSR2",
        "--run-path"})
    EXPECT_THAT(error_of({"run", flag, "./program"}),
                HasSubstr("a flag of torchrun that lockstep run does not"))
        << flag;
  EXPECT_THAT(error_of({"run", "--nproc-per-node=xpu", "./program"}),
              HasSubstr("Intel"));
}

TEST(CommandLine, RunTakesDefaultsFromTorchrunsVariables) {
  const Variable workers("PET_NPROC_PER_NODE", "3");
  const Variable restarts("PET_MAX_RESTARTS", "4");
  const Variable standalone("PET_STANDALONE", "1");
  const Variable module("PET_MODULE", "0");
  const Variable grace("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "8");
  const RunOptions options = parse_run({"./program"});
  EXPECT_EQ(options.workers, 3);
  EXPECT_EQ(options.nodes.max_restarts, 4);
  EXPECT_TRUE(options.nodes.standalone);
  EXPECT_EQ(options.launch.grace, 8);
  EXPECT_THAT(options.command, ElementsAre("./program"));
  const RunOptions typed = parse_run({"-n", "2", "--grace=9", "./program"});
  EXPECT_EQ(typed.workers, 2);
  EXPECT_EQ(typed.launch.grace, 9);
}

TEST(CommandLine, RunNamesTheVariablesThatMayBeWrong) {
  const Variable nodes("PET_NNODES", "2");
  EXPECT_THAT(error_of({"run", "./program"}),
              AllOf(HasSubstr("--nnodes 2 needs --rdzv-endpoint"),
                    HasSubstr("in the environment: PET_NNODES=2")));
  EXPECT_EQ(parse_run({"--nnodes=1", "./program"}).workers, 1);
  const Variable workers("PET_NPROC_PER_NODE", "3");
  EXPECT_EQ(parse_run({"-H", "a:2,b:2", "./program"}).hosts.size(), 2U);
  const Variable grace("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "nan");
  EXPECT_THAT(error_of({"run", "./program"}),
              HasSubstr("TORCH_ELASTIC_SHUTDOWN_TIMEOUT=nan"));
}

TEST(CommandLine, RunMayBeGivenAProgramNamedLikeOneOfOurCommands) {
  EXPECT_THAT(parse_run({"version"}).command, ElementsAre("version"));
  EXPECT_THAT(parse_run({"train", "run"}).command, ElementsAre("train", "run"));
}

TEST(CommandLine, TwoDashesEndTheFlags) {
  EXPECT_THAT(parse_run({"-n", "2", "--", "true", "-n"}).command,
              ElementsAre("true", "-n"));
}

TEST(CommandLine, RunRefusesWhatCannotBe) {
  EXPECT_THAT(error_of({"run"}), HasSubstr("run needs a program"));
  EXPECT_THAT(error_of({"run", "-n", "2"}), HasSubstr("run needs a program"));
  EXPECT_THAT(error_of({"run", "-n"}), HasSubstr("-n"));
  for (const char* text : {"0", "-1", "two", "1025", "", "gpu", "2.0"})
    EXPECT_THAT(error_of({"run", "-n", text, "true"}),
                AllOf(HasSubstr("--nproc-per-node"), HasSubstr(text)));
  for (const char* text : {"2", "1:4", "0", "", "4:2", "1:", "x", "100000"})
    EXPECT_THAT(error_of({"run", "--nnodes", text, "true"}),
                HasSubstr("--nnodes"));
  EXPECT_THAT(error_of({"run", "--master-port", "65536", "true"}),
              HasSubstr("\"65536\" is not a whole number from 1 to 65535"));
  EXPECT_EQ(error_of({"train", "-o", "a", "--output=b"}),
            "--output is given twice; give it once");
  EXPECT_EQ(error_of({"train", "--lr=1", "--lr=2", "--lr=3"}),
            "--lr is given 3 times; give it once");
  EXPECT_THAT(error_of({"run", "--bind", "cores", "true"}),
              HasSubstr("did you mean \"core\"?"));
  EXPECT_THAT(error_of({"run", "--nproc", "2", "true"}),
              HasSubstr("unknown flag \"--nproc\": did you mean "
                        "\"--nproc-per-node\"?"));
}

// As "$DIR" of a shell, where DIR is not set.
TEST(CommandLine, RefusesAnEmptyPathAndTakesNoOtherWordForIt) {
  for (const char* const flag : {"--log-dir", "--error-file"}) {
    EXPECT_THAT(error_of({"run", flag, "", "true"}),
                HasSubstr(std::string(flag) + " is empty"));
    EXPECT_THAT(error_of({"run", (std::string(flag) + "=").c_str(), "true"}),
                HasSubstr(std::string(flag) + " is empty"));
  }
  EXPECT_THAT(error_of({"run", "--nproc_per_node=", "true"}),
              HasSubstr("--nproc-per-node is \"\""));
  for (const char* const flag :
       {"--checkpoint-dir=", "--output=", "--weights=", "--resume="})
    EXPECT_THAT(error_of({"train", flag}), HasSubstr(" is empty"));
  // A flag without a value has none to miss.
  EXPECT_THAT(parse_run({"--no-fold=", "true"}).command, ElementsAre("true"));
  // The program's own.
  EXPECT_THAT(parse_run({"true", "--log-dir="}).command,
              ElementsAre("true", "--log-dir="));
}

TEST(CommandLine, RunRefusesFlagsThatCannotMatterOnOneHost) {
  EXPECT_THAT(
      error_of({"run", "--node-rank=9", "--nnodes=1", "true"}),
      HasSubstr("--node-rank is 9, but --nnodes allows at most 1 host"));
  EXPECT_THAT(error_of({"run", "--rdzv-conf", "foo=1", "true"}),
              HasSubstr("--rdzv-conf has \"foo=1\""));
  EXPECT_THAT(error_of({"run", "-n2", "--local-ranks-filter=9,2", "true"}),
              HasSubstr("--local-ranks-filter is 9,2, but the greatest local "
                        "rank is 1"));
  EXPECT_EQ(parse_run({"-n2", "--local-ranks-filter=9,1", "true"}).workers, 2);
  EXPECT_THAT(error_of({"run", "--hostfile", "/no/such/file", "true"}),
              HasSubstr("--hostfile: cannot read /no/such/file: No such file"));
}

// What torchrun ignores too.
TEST(CommandLine, RunSaysWhatStandaloneOverrides) {
  const auto ignored = [](std::vector<const char*> arguments) {
    arguments.push_back("true");
    return ignored_flags(parse_run(std::move(arguments)).nodes);
  };
  EXPECT_THAT(
      ignored({"--standalone", "--rdzv-endpoint=a:1", "--node-rank=1"}),
      ElementsAre(
          HasSubstr("--rdzv-endpoint a:1 has no effect beside --standalone"),
          HasSubstr("--node-rank 1 has no effect")));
  EXPECT_THAT(ignored({"--standalone", "--node-rank=0"}), ElementsAre());
  EXPECT_THAT(ignored({"--nnodes=1", "--rdzv-endpoint=localhost:0"}),
              ElementsAre());
}

TEST(CommandLine, TrainHandsOnWhatWasTyped) {
  const auto request =
      std::get<TrainRequest>(parse({"train", "--epochs", "1", "--bind=none"}));
  EXPECT_EQ(request.options.epochs, 1);
  EXPECT_EQ(request.options.ranks, 4);
  EXPECT_EQ(request.launch.bind, "none");
  EXPECT_THAT(request.arguments, ElementsAre("--epochs", "1", "--bind=none"));
}

TEST(CommandLine, TrainRefusesBadInputBeforeAnythingIsLaunched) {
  EXPECT_THAT(error_of({"train", "--batch-size", "0"}),
              HasSubstr("--batch-size"));
  EXPECT_THAT(error_of({"train", "-n", "3"}), HasSubstr("3 ranks"));
  EXPECT_THAT(error_of({"train", "--epoch=3"}),
              HasSubstr("did you mean \"--epochs\"?"));
  EXPECT_THAT(error_of({"train", "mnist"}), HasSubstr("\"mnist\""));
}

TEST(CommandLine, EvaluateAndPredictHandOnTheVerbAndWhatWasTyped) {
  // Any file suffices: the command does not read it here.
  const auto evaluate = std::get<EvaluateRequest>(
      parse({"evaluate", "/proc/self/exe", "-n3", "--bind=none"}));
  EXPECT_EQ(evaluate.options.verb, ModelVerb::kEvaluate);
  EXPECT_EQ(evaluate.options.ranks, 3);
  EXPECT_EQ(evaluate.launch.bind, "none");
  EXPECT_THAT(evaluate.arguments,
              ElementsAre("evaluate", "/proc/self/exe", "-n3", "--bind=none"));
  const auto predict = std::get<EvaluateRequest>(
      parse({"predict", "/proc/self/exe", "--output", "p.csv"}));
  EXPECT_EQ(predict.options.verb, ModelVerb::kPredict);
  EXPECT_EQ(predict.options.ranks, 4);
  EXPECT_EQ(predict.arguments.front(), "predict");
  EXPECT_THAT(error_of({"evaluate"}), HasSubstr("needs a trained model"));
  EXPECT_THAT(error_of({"predict", "/no/such/file", "--output", "p.csv"}),
              HasSubstr("no file"));
  EXPECT_THAT(error_of({"evaluate", "/proc/self/exe", "--output=x"}),
              HasSubstr("lockstep evaluate --help"));
}

TEST(CommandLine, BenchHandsOnWhatWasTyped) {
  const auto request = std::get<BenchRequest>(
      parse({"bench", "all_reduce", "--bytes", "4", "--bind=none"}));
  EXPECT_EQ(request.options.collective, "all_reduce");
  EXPECT_EQ(request.options.ranks, 4);
  EXPECT_EQ(request.launch.bind, "none");
  EXPECT_THAT(request.arguments,
              ElementsAre("all_reduce", "--bytes", "4", "--bind=none"));
  EXPECT_THAT(error_of({"bench", "allreduce"}),
              HasSubstr("did you mean \"all_reduce\"?"));
}

TEST(CommandLine, DataTakesAVerbWithFlagsOfItsOwn) {
  const auto made = std::get<MakeImagesOptions>(
      parse({"data", "make-images", "shapes", "--classes=20", "--count", "400",
             "--test-share", "0.5", "--format=png", "--seed", "3"}));
  EXPECT_EQ(made.folder, "shapes");
  EXPECT_EQ(made.classes, 20);
  EXPECT_EQ(made.test_count, 200);
  EXPECT_EQ(made.format, "png");
  EXPECT_EQ(made.seed, 3u);
  EXPECT_EQ(made.threads, 4);
  const auto shown =
      std::get<ShowDataOptions>(parse({"data", "show", "mnist", "--check"}));
  EXPECT_EQ(shown.data, "mnist");
  EXPECT_EQ(shown.depth, ExamineDepth::kPixels);
  EXPECT_THAT(help_of({"data", "--help"}),
              AllOf(HasSubstr("--test-count"), HasSubstr("--contact-sheet"),
                    HasSubstr("--from")));
  EXPECT_THAT(help_of({"data", "show", "-h"}),
              AllOf(HasSubstr("fashion-mnist"), Not(HasSubstr("--classes"))));
}

TEST(CommandLine, DataDownloadTakesADatasetAndAnAddress) {
  const auto request = std::get<DownloadDataRequest>(
      parse({"data", "download", "mnist", "--from=file:///mnist", "--timeout",
             "5", "--force"}));
  EXPECT_EQ(request.options.dataset, "mnist");
  EXPECT_EQ(request.options.from, "file:///mnist");
  EXPECT_EQ(request.options.data_dir, "/usr/share/datasets/mnist");
  EXPECT_EQ(request.options.timeout_seconds, 5);
  EXPECT_TRUE(request.options.force);
  EXPECT_THAT(request.arguments, ElementsAre("mnist", "--from=file:///mnist",
                                             "--timeout", "5", "--force"));
  EXPECT_THAT(error_of({"data", "download"}),
              HasSubstr("download needs a dataset"));
  EXPECT_THAT(error_of({"data", "download", "cifar"}),
              HasSubstr("did you mean \"cifar10\"?"));
  EXPECT_THAT(error_of({"data", "download", "mnist", "--timeout=0"}),
              HasSubstr("--timeout"));
}

TEST(CommandLine, DataRefusesWhatItDoesNotKnow) {
  EXPECT_THAT(error_of({"data"}), HasSubstr("data needs a verb"));
  EXPECT_THAT(error_of({"data", "shw", "mnist"}),
              HasSubstr("did you mean \"show\"?"));
  EXPECT_THAT(error_of({"data", "make-images"}),
              HasSubstr("make-images needs the folder"));
  EXPECT_THAT(error_of({"data", "make-images", "x", "--classes", "101"}),
              AllOf(HasSubstr("--classes"), HasSubstr("from 2 to 100")));
  EXPECT_THAT(error_of({"data", "make-images", "x", "--format", "gif"}),
              AllOf(HasSubstr("--format"), HasSubstr("jpeg, png")));
  EXPECT_THAT(error_of({"data", "make-images", "x", "--test-count=20",
                        "--test-share=0.1"}),
              AllOf(HasSubstr("--test-count"), HasSubstr("--test-share")));
  EXPECT_THAT(error_of({"data", "show", "mnist", "--chek"}),
              HasSubstr("did you mean \"--check\"?"));
}

TEST(CommandLine, BlameTakesAFolder) {
  const auto options =
      std::get<BlameOptions>(parse({"blame", "--json", "records"}));
  EXPECT_EQ(options.folder, "records");
  EXPECT_EQ(options.format, ReportFormat::kJson);
  EXPECT_THAT(error_of({"blame"}), HasSubstr("lockstep blame DIR"));
  EXPECT_THAT(error_of({"blame", "a", "b"}), HasSubstr("\"b\""));
}

TEST(CommandLine, StatusTakesNothingButTheFormat) {
  EXPECT_EQ(std::get<StatusOptions>(parse({"status"})).format,
            ReportFormat::kText);
  EXPECT_EQ(std::get<StatusOptions>(parse({"status", "--json"})).format,
            ReportFormat::kJson);
  EXPECT_THAT(error_of({"status", "now"}), HasSubstr("\"now\""));
}

TEST(CommandLine, DoctorTakesTheFormatAndItsScope) {
  EXPECT_EQ(std::get<DoctorOptions>(parse({"doctor"})).format,
            ReportFormat::kText);
  EXPECT_EQ(std::get<DoctorOptions>(parse({"doctor", "--json"})).format,
            ReportFormat::kJson);
  EXPECT_FALSE(std::get<DoctorOptions>(parse({"doctor"})).host_only);
  EXPECT_TRUE(
      std::get<DoctorOptions>(parse({"doctor", "--host-only"})).host_only);
  EXPECT_THAT(help_of({"doctor", "--help"}), HasSubstr("--host-only"));
  EXPECT_THAT(error_of({"doctor", "now"}), HasSubstr("\"now\""));
}

TEST(CommandLine, HelpListsCommandsAndFlags) {
  EXPECT_THAT(help_of({"--help"}), AllOf(HasSubstr("train"), HasSubstr("run"),
                                         HasSubstr("version")));
  EXPECT_THAT(help_of({"run", "--help"}),
              AllOf(HasSubstr("--nproc-per-node"), HasSubstr("--bind")));
  EXPECT_THAT(help_of({"train", "-h"}),
              AllOf(HasSubstr("--global-batch-size"), HasSubstr("--log-dir")));
  EXPECT_THAT(help_of({"evaluate", "--help"}),
              AllOf(HasSubstr("--json"), HasSubstr("--split")));
  EXPECT_THAT(help_of({"predict", "--help"}),
              AllOf(HasSubstr("--probabilities"), Not(HasSubstr("--json"))));
  EXPECT_THAT(help_of({"blame", "--help"}),
              AllOf(HasSubstr("LOCKSTEP_DUMP_DIR"), HasSubstr("3 when")));
  EXPECT_THAT(help_of({"bench", "--help"}),
              AllOf(HasSubstr("reduce_scatter"), HasSubstr("--plot")));
}

TEST(CommandLine, VersionIsAskedForAsUsersDo) {
  EXPECT_TRUE(std::holds_alternative<VersionRequest>(parse({"version"})));
  EXPECT_TRUE(std::holds_alternative<VersionRequest>(parse({"--version"})));
  EXPECT_THAT(error_of({"version", "2"}), HasSubstr("\"2\""));
}

TEST(CommandLine, AnUnknownCommandSuggestsTheNearest) {
  EXPECT_THAT(error_of({"trian"}), AllOf(HasSubstr("unknown command \"trian\""),
                                         HasSubstr("did you mean \"train\"?")));
  EXPECT_THAT(error_of({}), HasSubstr("a command is missing"));
  EXPECT_THAT(error_of({"--frobnicate"}), HasSubstr("unknown command"));
}

}  // namespace
}  // namespace lockstep
