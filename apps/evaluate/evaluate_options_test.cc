#include "apps/evaluate/evaluate_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class EvaluateOptionsOf : public testing::Test {
 protected:
  EvaluateOptionsOf() { std::ofstream(model_) << "tensors"; }

  // Replaces "MODEL" by the model's file.
  EvaluateOptions parse(std::vector<const char*> arguments,
                        const RankPlace& place = {.cores = 6}) const {
    for (const char*& argument : arguments)
      if (argument == std::string("MODEL")) argument = model_.c_str();
    return parse_evaluate_options(arguments, place);
  }
  std::string error_of(const std::vector<const char*>& arguments,
                       const RankPlace& place = {.cores = 6}) const {
    const std::string text = error_text([&] { parse(arguments, place); });
    EXPECT_THAT(text, AllOf(Not(HasSubstr("\n")), Not(HasSubstr("no error"))));
    return text;
  }

  TestDirectory folder_;
  std::string model_ = folder_ / "m.safetensors";
};

TEST_F(EvaluateOptionsOf, AModelAloneAreWhatTheFileSaysOnEveryCore) {
  const EvaluateOptions options = parse({"evaluate", "MODEL"});
  EXPECT_EQ(options.verb, ModelVerb::kEvaluate);
  EXPECT_EQ(options.file, model_);
  EXPECT_EQ(options.dataset, "");
  EXPECT_EQ(options.model, "");
  EXPECT_EQ(options.split, "test");
  EXPECT_EQ(options.ranks, 6);
  EXPECT_EQ(options.threads, 1);
  EXPECT_EQ(result_path(options), "");
  EXPECT_EQ(parse({"evaluate", "MODEL"}, {.cores = 64}).ranks, 8);
}

TEST_F(EvaluateOptionsOf, PredictSayWhereTheResultGoes) {
  const EvaluateOptions options =
      parse({"predict", "MODEL", "-o", "p.csv", "--probabilities"});
  EXPECT_EQ(options.verb, ModelVerb::kPredict);
  EXPECT_EQ(result_path(options), "p.csv");
  EXPECT_TRUE(options.probabilities);
  EXPECT_EQ(parse({"predict", "MODEL", "--output=-"}).output, kStandardOutput);
  EXPECT_EQ(result_path(parse({"evaluate", "MODEL", "--json", "e"})), "e");
}

TEST_F(EvaluateOptionsOf, DataAndModelAreThoseThatTheFlagsName) {
  const EvaluateOptions options =
      parse({"evaluate", "MODEL", "--dataset=mnist", "--data-dir", "data",
             "--split=train", "--model", "cnn", "--threads", "2"});
  EXPECT_EQ(options.dataset, "mnist");
  EXPECT_EQ(options.data_dir, "data");
  EXPECT_EQ(options.split, "train");
  EXPECT_EQ(options.model, "cnn");
  EXPECT_EQ(options.threads, 2);
}

TEST_F(EvaluateOptionsOf, PredictMayNameImagesWithoutLabels) {
  const std::string images = folder_ / "images.idx";
  std::ofstream(images) << "pixels";
  const auto given = [&](std::vector<const char*> more) {
    more.insert(more.begin(), {"predict", "MODEL", "-o", "p.csv", "--images",
                               images.c_str()});
    return more;
  };
  EXPECT_EQ(parse(given({})).images, images);
  EXPECT_THAT(error_of(given({"--split=test"})), HasSubstr("--split"));
  EXPECT_THAT(error_of(given({"--data-dir=d"})), HasSubstr("--data-dir"));
  EXPECT_THAT(error_of({"predict", "MODEL", "-o", "p.csv", "--images=absent"}),
              HasSubstr("no file \"absent\": --images"));
  EXPECT_THAT(error_of({"predict", "MODEL", "-o", images.c_str(), "--images",
                        images.c_str()}),
              HasSubstr("overwrite the images"));
  EXPECT_THAT(error_of({"evaluate", "MODEL", "--images", images.c_str()}),
              HasSubstr("unknown flag \"--images\""));
}

TEST_F(EvaluateOptionsOf, AnOutputSpareTheData) {
  const auto refused = [&](const std::string& output,
                           std::vector<const char*> data) {
    data.insert(data.begin(), {"predict", "MODEL", "-o", output.c_str()});
    EXPECT_THAT(error_of(data), HasSubstr("overwrite a file of the data"));
  };
  const std::string data = folder_.path().string();
  const std::string labels = folder_ / "t10k-labels-idx1-ubyte";
  std::ofstream(labels) << "labels";
  refused(labels, {"--data-dir", data.c_str()});
  const std::string link = folder_ / "p.csv";
  fs::create_symlink(labels, link);
  refused(link, {"--data-dir", data.c_str()});
  const std::string hard_link = folder_ / "hard.csv";
  fs::create_hard_link(labels, hard_link);
  refused(hard_link, {"--data-dir", data.c_str()});

  fs::create_directories(folder_ / "test/cat");
  const std::string image = folder_ / "test/cat/0.JPG";
  std::ofstream(image) << "pixels";
  refused(image, {"--data-dir", data.c_str()});
  refused(image, {"--images", data.c_str()});
  const std::string other_name = folder_ / "image.csv";
  fs::create_hard_link(image, other_name);
  refused(other_name, {"--data-dir", data.c_str()});

  // An image of no class, and what an earlier run wrote.
  const std::string beside = folder_ / "sheet.png";
  std::ofstream(beside) << "pixels";
  refused(beside, {"--images", data.c_str()});
  for (const std::string& kept : {beside, std::string(folder_ / "old.csv")}) {
    std::ofstream(kept) << "old";
    EXPECT_EQ(parse({"predict", "MODEL", "-o", kept.c_str(), "--data-dir",
                     data.c_str()})
                  .output,
              kept);
  }
}

TEST_F(EvaluateOptionsOf, AWorkerFollowTheWorldSizeAndSkipLaunchFlags) {
  const RankPlace worker{.cores = 1, .world_size = 3};
  EXPECT_EQ(parse({"evaluate", "MODEL", "--bind=none"}, worker).ranks, 3);
  EXPECT_THAT(error_of({"evaluate", "MODEL", "-n", "2"}, worker),
              HasSubstr("one of 3 ranks"));
}

TEST_F(EvaluateOptionsOf, GpusGiveEachARank) {
  const RankPlace place{.cores = 6, .gpus = [] { return 4; }};
  const EvaluateOptions all =
      parse({"evaluate", "MODEL", "--device", "cuda"}, place);
  EXPECT_EQ(all.ranks, 4);
  EXPECT_EQ(device_of_rank(all.devices, 2), "cuda:2");
  const EvaluateOptions some =
      parse({"predict", "MODEL", "-o", "p.csv", "--gpus=0,2"}, place);
  EXPECT_EQ(some.ranks, 2);
  EXPECT_EQ(some.devices.device, "cuda");
  EXPECT_EQ(parse({"evaluate", "MODEL", "--gpus=2"}, {.world_size = 2}).ranks,
            2);
  EXPECT_EQ(parse({"evaluate", "MODEL"}, place).devices.device, "cpu");
  EXPECT_THAT(error_of({"evaluate", "MODEL", "--gpus=2", "-n3"}, place),
              HasSubstr("leave out one"));
  EXPECT_THAT(error_of({"evaluate", "MODEL", "--device=cuda"}),
              HasSubstr("lockstep doctor"));
}

TEST_F(EvaluateOptionsOf, AModelSayHowItComputes) {
  const EvaluateOptions usual = parse({"evaluate", "MODEL"});
  EXPECT_FALSE(usual.compute.tf32 || usual.compute.channels_last);
  EXPECT_TRUE(parse({"predict", "MODEL", "-o", "p.csv", "--channels-last"})
                  .compute.channels_last);
  EXPECT_TRUE(parse({"evaluate", "MODEL", "--tf32", "--gpus=2"}).compute.tf32);
}

TEST_F(EvaluateOptionsOf, ImagesAreAsLargeAsTransformsCanMakeThem) {
  EXPECT_EQ(parse({"evaluate", "MODEL", "--image-size=57343"}).image_size,
            57'343);
  EXPECT_THAT(error_of({"evaluate", "MODEL", "--image-size=57344"}),
              AllOf(HasSubstr("--image-size"), HasSubstr("57344"),
                    HasSubstr("from 1 to 57343")));
}

TEST_F(EvaluateOptionsOf, WhatCannotBeAreRefused) {
  EXPECT_THAT(error_of({"evaluate"}), HasSubstr("lockstep evaluate MODEL"));
  EXPECT_THAT(error_of({"predict", "MODEL"}), HasSubstr("needs --output"));
  EXPECT_THAT(
      error_of({"evaluate", "absent"}),
      AllOf(HasSubstr("no file \"absent\""), HasSubstr("lockstep train")));
  EXPECT_THAT(error_of({"predict", "MODEL", "-o", "MODEL"}),
              HasSubstr("overwrite the model"));
  EXPECT_THAT(error_of({"evaluate", "MODEL", "--split=tests"}),
              HasSubstr("did you mean \"test\"?"));
  EXPECT_THAT(error_of({"evaluate", "MODEL", "--dataset=minst"}),
              HasSubstr("did you mean \"mnist\"?"));
  EXPECT_THAT(error_of({"evaluate", "MODEL", "--probabilities"}),
              HasSubstr("unknown flag \"--probabilities\""));
  EXPECT_THAT(error_of({"evaluate", "MODEL", "--tf32"}),
              HasSubstr("add --device cuda"));
  EXPECT_THAT(error_of({"evaluate", "MODEL", "more"}),
              HasSubstr("takes no argument \"more\""));
  EXPECT_THAT(error_of({"guess", "MODEL"}), HasSubstr("evaluate, predict"));
  EXPECT_THAT(error_of({}), HasSubstr("evaluate, predict"));
}

}  // namespace
}  // namespace lockstep
