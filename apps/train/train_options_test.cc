#include "apps/train/train_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "apps/testing/parse_train_flags.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(TrainOptions, DefaultsAreTheJobOfTheReadme) {
  const TrainOptions options = parse_train({});
  EXPECT_EQ(options.dataset, "fashion-mnist");
  EXPECT_EQ(options.model, "convnet");
  EXPECT_EQ(options.ranks, 2);
  EXPECT_EQ(options.threads, std::nullopt);
  EXPECT_EQ(options.global_batch, 128);
  EXPECT_EQ(options.batch_size, 64);
  EXPECT_EQ(options.optimizer, "sgd");
  EXPECT_GT(learning_rate_of(options), 0);
  EXPECT_EQ(options.output, "convnet-fashion-mnist.safetensors");
}

TEST(TrainOptions, RanksAreTheLargestPowerOfTwoUpToCoresAndEight) {
  std::vector<int> ranks;
  for (const int cores : {1, 2, 3, 4, 7, 8, 12, 64})
    ranks.push_back(default_ranks(cores));
  EXPECT_THAT(ranks, ElementsAre(1, 2, 2, 4, 4, 8, 8, 8));
}

TEST(TrainOptions, CoresToSpareBecomeThreads) {
  EXPECT_EQ(default_threads(16, 8), 2);
  EXPECT_EQ(default_threads(6, 4), 1);
  EXPECT_EQ(default_threads(6, 1), 6);
  EXPECT_EQ(default_threads(2, 8), 1);
}

TEST(TrainOptions, CoresWithoutEndBecomeAsManyThreadsAsTheFlagsTake) {
  EXPECT_EQ(default_threads(1024, 1), 1024);
  EXPECT_EQ(default_threads(2048, 1), 1024);
  EXPECT_EQ(default_threads(4096, 2), 1024);
  EXPECT_EQ(parse_train({"--workers=1024"}).readers, 1024);
}

TEST(TrainOptions, DataAndModelAreThoseThatTheFlagsName) {
  const TrainOptions options =
      parse_train({"--dataset=mnist", "--data-dir", "data", "--augment",
                   "--model", "mlp", "--hidden", "64,32", "--dropout", "0.5"});
  EXPECT_EQ(options.dataset, "mnist");
  EXPECT_EQ(options.data_dir, "data");
  EXPECT_EQ(options.augment, "standard");
  EXPECT_EQ(options.model, "mlp");
  EXPECT_THAT(options.hidden, ElementsAre(64, 32));
  EXPECT_EQ(options.dropout, 0.5);
}

TEST(TrainOptions, ImagesOfAFolderAreAsLargeAsTransformsCanMakeThem) {
  const auto error = [](const char* size) {
    return train_error({"--dataset=imagefolder", "--data-dir=d", size});
  };
  EXPECT_EQ(parse_train(
                {"--dataset=imagefolder", "--data-dir=d", "--image-size=57343"})
                .image_size,
            57'343);
  EXPECT_THAT(error("--image-size=57344"),
              AllOf(HasSubstr("--image-size"), HasSubstr("57344"),
                    HasSubstr("from 1 to 57343")));
}

TEST(TrainOptions, AboutImageFilesNeedAFolderOfThem) {
  const TrainOptions options =
      parse_train({"--dataset=imagefolder", "--data-dir=d", "--exact-pixels",
                   "--max-broken=3"});
  EXPECT_TRUE(options.exact_pixels);
  EXPECT_EQ(options.max_broken, 3);
  for (const char* flag :
       {"--exact-pixels", "--max-broken=3", "--image-size=32"})
    EXPECT_THAT(train_error({flag}),
                AllOf(HasSubstr("is for --dataset imagefolder"),
                      HasSubstr("the images of fashion-mnist")));
  EXPECT_THAT(
      train_error({"--dataset=imagefolder", "--data-dir=d", "--max-broken=-1"}),
      HasSubstr("--max-broken"));
}

TEST(TrainOptions, WeightsAreThoseOfAFileThatTheCommandSees) {
  EXPECT_EQ(parse_train({}).weights, "");
  EXPECT_THAT(train_error({"--weights", "/nope/w.safetensors"}),
              HasSubstr("no file \"/nope/w.safetensors\" for --weights"));
  EXPECT_EQ(
      parse_train({"--weights=/nope/w"}, {.cores = 1, .world_size = 2}).weights,
      "/nope/w");
}

TEST(TrainOptions, TheOptimizerIsThatWhichTheFlagsDescribe) {
  const TrainOptions options =
      parse_train({"--optimizer", "adam", "--lr", "1e-2", "--schedule",
                   "constant", "--momentum", "0", "--weight-decay", "1e-4"});
  EXPECT_EQ(options.optimizer, "adam");
  EXPECT_EQ(options.learning_rate, 0.01);
  EXPECT_EQ(options.schedule.name, "constant");
  EXPECT_EQ(options.momentum, 0);
  EXPECT_EQ(options.weight_decay, 1e-4);
}

TEST(TrainOptions, TheRunIsAsLongAndTellsAsMuchAsTheFlagsSay) {
  const TrainOptions options =
      parse_train({"--epochs", "3", "--seed", "7", "-o", "model.safetensors",
                   "--evaluate-every", "2", "--log-interval", "50"});
  EXPECT_EQ(options.epochs, 3);
  EXPECT_EQ(options.seed, 7u);
  EXPECT_EQ(options.output, "model.safetensors");
  EXPECT_EQ(options.evaluate_every, 2);
  EXPECT_EQ(options.log_interval, 50);
}

TEST(TrainOptions, NameNoOutputAmongTheData) {
  const TestDirectory folder;
  const std::string directory = folder.path().string();
  const std::string batch =
      folder / "cifar-10-batches-bin" / "data_batch_1.bin";
  const std::vector<const char*> flags{"--dataset=cifar10", "--data-dir",
                                       directory.c_str(), "-o", batch.c_str()};
  EXPECT_EQ(parse_train(flags).output, batch);
  std::filesystem::create_directory(folder / "cifar-10-batches-bin");
  std::ofstream(batch) << "pixels";
  EXPECT_THAT(train_error(flags), HasSubstr("overwrite a file of the data"));
}

TEST(TrainOptions, WorkersAndTheirBatchesAreWhatTheFlagsSay) {
  const TrainOptions options =
      parse_train({"--ranks", "3", "--batch-size", "5", "--threads", "2",
                   "--bind", "none", "--log-dir", "logs"});
  EXPECT_EQ(options.ranks, 3);
  EXPECT_EQ(options.batch_size, 5);
  EXPECT_EQ(options.global_batch, 15);
  EXPECT_EQ(options.threads, 2);
  EXPECT_EQ(options.log_dir, "logs");
}

TEST(TrainOptions, GlobalBatchIsDividedAndBatchSizeIsARanks) {
  EXPECT_EQ(parse_train({"--global-batch-size", "96", "-n", "4"}).batch_size,
            24);
  EXPECT_EQ(parse_train({"--batch-size", "96", "-n", "4"}).global_batch, 384);
  EXPECT_EQ(parse_train(
                {"--batch-size", "24", "--global-batch-size", "96", "-n", "4"})
                .batch_size,
            24);
}

TEST(TrainOptions, RefusesBatchSizesThatContradictEachOther) {
  EXPECT_THAT(train_error({"--batch-size", "64", "--global-batch-size", "100"}),
              AllOf(HasSubstr("global batch of 128"), HasSubstr("is 100")));
}

TEST(TrainOptions, RefusesAGlobalBatchThatTheRanksDoNotDivide) {
  EXPECT_EQ(train_error({"-n", "3"}),
            "a global batch of 128 cannot be divided over 3 ranks: use -n with "
            "one of 1, 2, 4, 8, or --global-batch-size 126 or 129");
  EXPECT_EQ(train_error({"-n", "4", "--global-batch-size", "3"}),
            "a global batch of 3 cannot be divided over 4 ranks: use -n with "
            "one of 1, 3, or --global-batch-size 4");
}

TEST(TrainOptions, RefusesWhatIsNoSensibleNumber) {
  for (const char* flag :
       {"--batch-size", "--global-batch-size", "--epochs", "--ranks",
        "--threads", "--hidden", "--evaluate-every", "--log-interval",
        "--accumulate", "--logical-shards"})
    for (const char* text : {"0", "-1", "two", "1.5", "", "99999999999"})
      EXPECT_THAT(train_error({flag, text}),
                  AllOf(HasSubstr(flag), HasSubstr(text),
                        HasSubstr("not a whole number from 1")))
          << flag << " " << text;
  for (const char* flag :
       {"--lr", "--momentum", "--weight-decay", "--dropout", "--clip-norm"})
    for (const char* text : {"-1", "two", "nan", "inf", "1e999"})
      EXPECT_THAT(train_error({flag, text}),
                  AllOf(HasSubstr(flag), HasSubstr("is not a number")))
          << flag << " " << text;
}

TEST(TrainOptions, UnknownNamesListTheKnownAndTheNearest) {
  EXPECT_THAT(train_error({"--model", "conv-net"}),
              AllOf(HasSubstr("unknown model \"conv-net\""),
                    HasSubstr("did you mean \"convnet\"?"),
                    HasSubstr("convnet, cnn, mlp, resnet18")));
  EXPECT_THAT(train_error({"--dataset", "fashon-mnist"}),
              HasSubstr("did you mean \"fashion-mnist\"?"));
  EXPECT_THAT(train_error({"--optimizer", "lion"}), HasSubstr("sgd, adam"));
}

TEST(TrainOptions, HowRanksWorkTogetherIsWhatTheFlagsSay) {
  const TrainOptions usual = parse_train({});
  EXPECT_EQ(usual.accumulate, 1);
  EXPECT_EQ(usual.clip_norm, std::nullopt);
  EXPECT_FALSE(usual.sharded || usual.find_unused);
  EXPECT_EQ(usual.precision, "float32");
  EXPECT_EQ(usual.hook, "none");
  const TrainOptions options = parse_train(
      {"--accumulate", "4", "--clip-norm", "0.5", "--sharded", "--find-unused",
       "--precision", "bfloat16", "--channels-last"});
  EXPECT_EQ(options.accumulate, 4);
  EXPECT_EQ(options.clip_norm, 0.5);
  EXPECT_TRUE(options.sharded && options.find_unused);
  EXPECT_EQ(options.precision, "bfloat16");
  EXPECT_TRUE(options.compute.channels_last);
  EXPECT_FALSE(usual.compute.channels_last || usual.compute.tf32);
}

TEST(TrainOptions, LetsGpusAloneRoundFactors) {
  EXPECT_TRUE(
      parse_train({"--tf32", "--device", "cuda"}, {.gpus = [] { return 2; }})
          .compute.tf32);
  EXPECT_THAT(train_error({"--tf32"}), HasSubstr("add --device cuda"));
  EXPECT_TRUE(parse_train({"--cuda-graph", "--device", "cuda"},
                          {.gpus = [] { return 2; }})
                  .cuda_graph);
  EXPECT_THAT(train_error({"--cuda-graph"}), HasSubstr("add --device cuda"));
}

// apps/options/training_conflicts_test.cc has all of them.
TEST(TrainOptions, RefuseFlagsThatExcludeEachOther) {
  EXPECT_EQ(train_error({"--cuda-graph", "--device", "cuda", "-n2",
                         "--accumulate", "2"}),
            "--accumulate is not for --cuda-graph, which replays one pass, the "
            "same each time and without the host: leave out one of the two");
  EXPECT_THAT(train_error({"--strategy=mirrored", "--sharded"}),
              HasSubstr("--sharded is not for --strategy mirrored"));
  EXPECT_EQ(parse_train({"--strategy=horovod", "--hook=bf16"}).hook, "bf16");
}

TEST(TrainOptions, RefusesMoreMicroBatchesThanARankHasImages) {
  EXPECT_EQ(parse_train({"--accumulate", "64"}).accumulate, 64);
  EXPECT_EQ(train_error({"--accumulate", "65"}),
            "--accumulate 65 is more than the 64 images that each of 2 ranks "
            "has of a batch: use at most 64, or a larger --global-batch-size");
}

TEST(TrainOptions, TakesAKnownHook) {
  EXPECT_EQ(parse_train({"--hook", "fp16"}).hook, "fp16");
  EXPECT_THAT(train_error({"--hook", "fp8"}), HasSubstr("unknown hook"));
}

TEST(TrainOptions, RefusesAClippingToNothingAndAnUnknownPrecision) {
  EXPECT_THAT(train_error({"--clip-norm", "0"}), HasSubstr("--clip-norm"));
  EXPECT_THAT(train_error({"--precision", "half"}),
              AllOf(HasSubstr("unknown precision \"half\""),
                    HasSubstr("float32, bfloat16, float16")));
  EXPECT_EQ(parse_train({"--precision", "float16"}).precision, "float16");
}

TEST(TrainOptions, LogicalShardsFixThreadsAndBoundRanks) {
  const TrainOptions options =
      parse_train({"--logical-shards", "4"}, {.cores = 16});
  EXPECT_EQ(options.logical_shards, 4);
  EXPECT_EQ(options.ranks, 4);
  EXPECT_EQ(options.threads, 1);
  EXPECT_EQ(parse_train({"--logical-shards", "2", "--threads", "3"}).threads,
            3);
  EXPECT_EQ(parse_train({"--logical-shards", "32"}, {.cores = 16}).ranks, 8);
  EXPECT_EQ(parse_train({}).logical_shards, std::nullopt);
}

TEST(TrainOptions, RefusesLogicalShardsThatMakeNoTree) {
  EXPECT_EQ(train_error({"--logical-shards", "6", "-n", "1"}),
            "--logical-shards 6 is not a power of two: use 4 or 8");
  EXPECT_THAT(train_error({"--logical-shards", "4", "-n", "8"}),
              HasSubstr("use -n with a power of two of at most 4"));
  EXPECT_THAT(train_error({"--logical-shards", "4", "-n", "3",
                           "--global-batch-size", "12"}),
              HasSubstr("cannot be divided evenly over 3 ranks"));
  EXPECT_THAT(
      train_error({"--logical-shards", "8", "--global-batch-size", "100"}),
      AllOf(HasSubstr("into 8 logical shards"), HasSubstr("size 104")));
}

TEST(TrainOptions, TakeResidualNetworksWithoutDropout) {
  EXPECT_EQ(parse_train({"--model", "resnet18"}).output,
            "resnet18-fashion-mnist.safetensors");
  EXPECT_EQ(parse_train({"--model", "resnet50", "--dropout", "0"}).dropout, 0);
  EXPECT_THAT(train_error({"--model", "resnet34", "--dropout", "0.5"}),
              HasSubstr("resnet34 has none"));
}

TEST(TrainOptions, ChooseAStemOfResidualNetworksOnly) {
  EXPECT_EQ(parse_train({"--model", "resnet18"}).stem, "auto");
  EXPECT_EQ(parse_train({"--model", "resnet18", "--stem", "cifar"}).stem,
            "cifar");
  EXPECT_THAT(train_error({"--model", "resnet18", "--stem", "cifr"}),
              HasSubstr("did you mean \"cifar\"?"));
  EXPECT_EQ(train_error({"--stem", "cifar"}),
            "--stem is for --model resnet18, resnet34 and resnet50; convnet "
            "has none");
}

TEST(TrainOptions, StopAtNanUnlessToldOtherwise) {
  EXPECT_EQ(parse_train({}).on_nan, "stop");
  EXPECT_EQ(parse_train({"--on-nan", "skip"}).on_nan, "skip");
  EXPECT_THAT(train_error({"--on-nan", "halt"}),
              HasSubstr("stop, skip, ignore"));
}

TEST(TrainOptions, AWrongAugmentationNamesTheTransformsToo) {
  EXPECT_THAT(
      train_error({"--augment", "imagnet"}),
      AllOf(HasSubstr("did you mean \"imagenet\"?"),
            HasSubstr("random_crop, random_resized_crop"), HasSubstr("hflip")));
  EXPECT_THAT(train_error({"--augment", "random_crop"}),
              AllOf(HasSubstr("random_crop"), HasSubstr("size")));
}

TEST(TrainOptions, UnknownFlagsSuggestTheNearest) {
  EXPECT_THAT(
      train_error({"--epoch", "3"}),
      HasSubstr("unknown flag \"--epoch\": did you mean \"--epochs\"?"));
  EXPECT_THAT(train_error({"mnist"}), HasSubstr("no argument \"mnist\""));
}

TEST(TrainOptions, RefusesAFlagWithoutItsValue) {
  EXPECT_THAT(train_error({"--epochs"}), HasSubstr("--epochs"));
}

TEST(TrainOptions, RefusesListsWithAnEmptyEntry) {
  for (const char* text : {"1,,2", ",1", "1,", ","})
    EXPECT_THAT(train_error({"--model=mlp", "--hidden", text}),
                AllOf(HasSubstr("--hidden"),
                      HasSubstr("\"\" is not a whole number from 1")))
        << text;
  for (const char* text : {"fc.bias,,fc.weight", "fc.bias,", ""})
    EXPECT_THAT(
        train_error({"--check-consistency", "--show-values", text}),
        AllOf(HasSubstr("--show-values"), HasSubstr("\"\" is not the name")))
        << text;
}

TEST(TrainOptions, RefusesHiddenSizesForOtherModels) {
  EXPECT_THAT(train_error({"--hidden", "64"}), HasSubstr("--model mlp"));
}

TEST(TrainOptions, EveryErrorIsOneLine) {
  for (const auto& arguments : std::vector<std::vector<const char*>>{
           {"-n", "3"}, {"--model", "x"}, {"--epochs"}, {"--foo"}, {"-n", "x"}})
    EXPECT_THAT(train_error(arguments),
                AllOf(Not(HasSubstr("\n")), Not(HasSubstr("no error"))));
}

TEST(TrainOptions, InAWorkerFollowTheWorldSize) {
  const RankPlace worker{.cores = 1, .world_size = 4};
  const TrainOptions options = parse_train({}, worker);
  EXPECT_EQ(options.ranks, 4);
  EXPECT_EQ(options.batch_size, 32);
  EXPECT_EQ(options.threads, std::nullopt);
  EXPECT_THAT(train_error({"-n", "2"}, worker), HasSubstr("one of 4 ranks"));
}

TEST(TrainOptions, SayWhereCheckpointsGoAndWhereToGoOnFrom) {
  const TrainOptions usual = parse_train({});
  EXPECT_EQ(usual.checkpoint_dir, "");
  EXPECT_EQ(usual.resume, "");
  EXPECT_EQ(usual.keep, 3);
  const TrainOptions options =
      parse_train({"--checkpoint-dir", "runs/1", "--checkpoint-every=50",
                   "--keep", "2", "--resume", "auto"});
  EXPECT_EQ(options.checkpoint_dir, "runs/1");
  EXPECT_EQ(options.checkpoint_every, 50);
  EXPECT_EQ(options.keep, 2);
  EXPECT_EQ(options.resume, "auto");
  EXPECT_EQ(parse_train({"--resume", "runs/1"}).resume, "runs/1");
}

TEST(TrainOptions, TheModelTakesNoNameOfTheCheckpoints) {
  const TestDirectory folder;
  std::filesystem::create_symlink(folder.path(), folder / "link");
  const std::string link = folder / "link/ck";
  const std::string model = folder / "ck/checkpoint-000005.safetensors";
  const auto error = [](const std::string& output, const std::string& ck) {
    return train_error({"-o", output.c_str(), "--checkpoint-dir", ck.c_str()});
  };
  for (const auto& [output, ck] :
       {std::pair<std::string, std::string>("x", "x"),
        {"x", "./x/"},
        {"x", "x/y"},
        {"x/.lock", "x/"},
        {model, link}})
    EXPECT_THAT(error(output, ck),
                HasSubstr("belongs to the checkpoints of --checkpoint-dir"))
        << output << " " << ck;
  EXPECT_EQ(error("x/model.safetensors", "x"), "no error");
  EXPECT_EQ(error("x/checkpoint-best.safetensors", "x"), "no error");
  EXPECT_EQ(error("x", "xy"), "no error");
}

TEST(TrainOptions, AboutCheckpointsNeedAFolder) {
  EXPECT_THAT(train_error({"--resume", "auto"}),
              HasSubstr("--resume auto needs --checkpoint-dir"));
  EXPECT_THAT(train_error({"--keep", "2"}),
              HasSubstr("--keep needs --checkpoint-dir"));
  EXPECT_THAT(train_error({"--checkpoint-every", "2"}),
              HasSubstr("--checkpoint-every needs --checkpoint-dir"));
  EXPECT_THAT(train_error({"--checkpoint-every", "0"}),
              HasSubstr("--checkpoint-every"));
}

TEST(ReplicaFlags, AreOffUnlessGiven) {
  const TrainOptions options = parse_train({});
  EXPECT_FALSE(options.sync_batch_norm);
  EXPECT_EQ(options.checks.consistency_steps, 0);
  EXPECT_EQ(options.checks.fingerprint_every, 0);
}

TEST(ReplicaFlags, SayWhatIsChecked) {
  EXPECT_EQ(parse_train({"--check-consistency", "--epochs", "1"})
                .checks.consistency_steps,
            3);
  const TrainOptions options = parse_train(
      {"--check-consistency=7", "--show-values", "fc.bias,conv1.weight",
       "--fingerprint-every", "100", "--sync-bn", "--model", "resnet18"});
  EXPECT_EQ(options.checks.consistency_steps, 7);
  EXPECT_THAT(options.checks.show, ElementsAre("fc.bias", "conv1.weight"));
  EXPECT_EQ(options.checks.fingerprint_every, 100);
  EXPECT_TRUE(options.sync_batch_norm);
}

TEST(ReplicaFlags, RefuseWhatIsNoNumberOfSteps) {
  for (const char* text : {"0", "-1", "two", "1.5"}) {
    const std::string flag = std::string("--check-consistency=") + text;
    EXPECT_THAT(train_error({flag.c_str()}), HasSubstr("--check-consistency"))
        << text;
    EXPECT_THAT(train_error({"--fingerprint-every", text}),
                AllOf(HasSubstr("--fingerprint-every"),
                      HasSubstr("not a whole number from 1")))
        << text;
  }
}

TEST(ReplicaFlags, RefuseSyncBnWhereItHasNoMeaning) {
  EXPECT_EQ(train_error({"--sync-bn"}),
            "--sync-bn is for --model resnet18, resnet34 and resnet50; convnet "
            "has no batch normalization");
  EXPECT_THAT(train_error({"--sync-bn", "--model", "resnet18",
                           "--logical-shards", "2"}),
              HasSubstr("leave out one of the two"));
}

TEST(ReplicaFlags, RefuseValuesOfNoTable) {
  EXPECT_THAT(train_error({"--show-values", "fc.bias"}),
              HasSubstr("--show-values is for --check-consistency"));
}

// Each flag keeps its usual spellings behind a flag that may stand alone.
TEST(TrainOptions, OfAFlagThatMayStandAloneAreNoFurtherFlag) {
  for (const char* alone : {"--check-consistency", "--augment"}) {
    EXPECT_EQ(parse_train({alone, "-np", "4"}).ranks, 4) << alone;
    EXPECT_EQ(parse_train({alone, "--log_interval", "7"}).log_interval, 7);
    EXPECT_THAT(train_error({alone, "--checkpoint-dir=", "--epochs", "1"}),
                HasSubstr("--checkpoint-dir is empty"));
  }
  EXPECT_EQ(parse_train({"--check-consistency", "5"}).checks.consistency_steps,
            5);
}

}  // namespace
}  // namespace lockstep
