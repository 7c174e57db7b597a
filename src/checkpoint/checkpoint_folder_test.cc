#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/gradient_scaler.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/base/log.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/checkpoint/checkpoint_seal.h"
#include "src/checkpoint/folder_lock.h"
#include "src/checkpoint/tensor_archive.h"
#include "src/checkpoint/training_state.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Group = std::shared_ptr<ProcessGroup>;

struct NetInFolder : torch::nn::Module {
  explicit NetInFolder(std::int64_t width = 3)
      : linear(register_module("linear", torch::nn::Linear(width, 4))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))) {}
  at::Tensor forward(const at::Tensor& x) { return norm(linear(x)); }

  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
};

// A small run with the same model on all ranks; each rank also draws numbers
// from its own generator.
struct Loop {
  explicit Loop(const Group& group, std::int64_t inputs = 3)
      : width(inputs),
        net(std::make_shared<NetInFolder>(inputs)),
        optimizer(net->parameters(),
                  torch::optim::SGDOptions(0.1).momentum(0.9)),
        scaler({.group = group, .init_scale = 8, .growth_interval = 2}),
        generator(default_cpu_generator().clone()),
        own(at::full({2}, 1.0 * group->rank())) {
    generator.set_current_seed(7 + static_cast<std::uint64_t>(group->rank()));
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.fill_(0.1);
  }

  TrainingState state() {
    return {.model = net,
            .optimizer = &optimizer,
            .scaler = &scaler,
            .counters = {{"step", &step}},
            .generators = {{"numbers", generator}},
            .own = {{"own", own}},
            .job = {{"data", "drawn"}}};
  }

  void train(int steps) {
    for (int i = 0; i < steps; ++i, ++step) {
      const at::Tensor batch =
          at::arange(8 * width).view({8, width}).add(step).sin();
      optimizer.zero_grad();
      scaler.scale(net->forward(batch).square().sum()).backward();
      scaler.step(optimizer);
      scaler.update();
      own.add_(at::rand({2}, generator));
    }
  }

  // The whole state, as text: equal for equal bits.
  std::string bits() {
    std::string text =
        std::to_string(step) + " " + std::to_string(scaler.get_scale());
    const auto add = [&](const at::Tensor& tensor) {
      text.append(static_cast<const char*>(tensor.const_data_ptr()),
                  tensor.nbytes());
    };
    for (const auto& [name, tensor] : tensors_of(*net)) add(tensor);
    add(own);
    add(generator.get_state());
    return text;
  }

  std::int64_t width;
  std::shared_ptr<NetInFolder> net;
  FusedSGD optimizer;
  GradientScaler scaler;
  at::Generator generator;
  at::Tensor own;
  std::int64_t step = 0;
};

void on_ranks(int ranks, const RankBody& body) {
  run_ranks("shm", ranks, [&](const Group& group) {
    at::set_num_threads(1);  // a setting of each thread
    body(group);
  });
}

std::vector<std::string> names_in(const CheckpointFolder& folder) {
  std::vector<std::string> names;
  for (const auto& path : folder.files())
    names.push_back(path.filename().string());
  return names;
}

class CheckpointFolderOf : public ::testing::TestWithParam<CheckpointFormat> {
 protected:
  // Hides the warnings about damaged files.
  void SetUp() override { set_log_level(LogLevel::kError); }
  void TearDown() override { set_log_level(LogLevel::kWarn); }

  CheckpointFolder folder_on(const Group& group, int keep = 3) const {
    return CheckpointFolder(
        directory_ / "runs/1",
        {.keep = keep, .format = GetParam(), .group = group});
  }
  // A folder of a run with one rank.
  CheckpointFolder folder() const { return folder_on(nullptr); }
  // Writes `count` checkpoints, one per step, and returns their contents.
  std::vector<std::string> write_some(int count) const {
    std::vector<std::string> bits;
    on_ranks(1, [&](const Group& group) {
      Loop loop(group);
      for (int i = 0; i < count; ++i) {
        loop.train(1);
        folder_on(group).save(loop.state(), loop.step);
        bits.push_back(loop.bits());
      }
    });
    return bits;
  }
  // The state of a run that resumes from the folder, or its error.
  std::string resumed(std::int64_t width = 3) const {
    std::string bits;
    on_ranks(1, [&](const Group& group) {
      Loop loop(group, width);
      const std::string before = loop.bits();
      bits = error_text([&] { folder_on(group).resume(loop.state()); });
      if (bits == "no error")
        bits = loop.bits();
      else
        EXPECT_EQ(loop.bits(), before);
    });
    return bits;
  }

  TestDirectory directory_;
};

INSTANTIATE_TEST_SUITE_P(Formats, CheckpointFolderOf,
                         ::testing::Values(CheckpointFormat::kSafetensors,
                                           CheckpointFormat::kLibTorch),
                         [](const auto& format) {
                           return format.param == CheckpointFormat::kSafetensors
                                      ? "Safetensors"
                                      : "LibTorch";
                         });

TEST_P(CheckpointFolderOf, GoesOnBitForBitWhereItWasSaved) {
  for (const int ranks : {1, 3})
    on_ranks(ranks, [&](const Group& group) {
      Loop uninterrupted(group), resumed(group);
      uninterrupted.train(3);
      auto folder = folder_on(group);
      folder.save(uninterrupted.state(), 3);
      uninterrupted.train(4);
      resumed.train(1);  // leaves nothing behind
      ASSERT_TRUE(folder.resume(resumed.state()));
      EXPECT_EQ(resumed.step, 3);
      resumed.train(4);
      EXPECT_EQ(resumed.bits(), uninterrupted.bits()) << group->rank();
    });
}

TEST_P(CheckpointFolderOf, BeginsWhereThereIsNone) {
  on_ranks(2, [&](const Group& group) {
    Loop loop(group);
    const std::string before = loop.bits();
    EXPECT_EQ(folder_on(group).resume(loop.state()), std::nullopt);
    EXPECT_EQ(loop.bits(), before);
  });
}

TEST_P(CheckpointFolderOf, KeepsTheNewestUnderTheNumbersOfTheirSteps) {
  on_ranks(2, [&](const Group& group) {
    Loop loop(group);
    auto folder = folder_on(group, 2);
    for (const int step : {0, 7, 90, 1234567, 1234567})
      folder.save(loop.state(), step);
  });
  const std::string ending(ending_of(GetParam()));
  EXPECT_THAT(names_in(folder()), ElementsAre("checkpoint-000090" + ending,
                                              "checkpoint-1234567" + ending));
  EXPECT_EQ(folder().newest(), folder().files().back());
}

TEST_P(CheckpointFolderOf, IsFoundWithinAnyFormat) {
  const auto bits = write_some(2);
  on_ranks(1, [&](const Group& group) {
    Loop loop(group);
    CheckpointFolder other(directory_ / "other", {.group = group});
    EXPECT_EQ(other.load(folder().files()[0], loop.state()),
              folder().files()[0]);
    EXPECT_EQ(loop.bits(), bits[0]);
    EXPECT_EQ(other.load(directory_ / "runs/1", loop.state()),
              folder().files()[1]);
    EXPECT_EQ(loop.bits(), bits[1]);
  });
  NetInFolder net;
  load_checkpoint(folder().files()[1], net);  // the model in it
}

TEST_P(CheckpointFolderOf, PassesOverOnesThatWereCutShort) {
  const auto bits = write_some(2);
  const auto newest = folder().files().back();
  const std::string whole = contents(newest);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{100},
        whole.size() / 2, whole.size() - 1}) {
    std::ofstream(newest, std::ios::binary) << whole.substr(0, size);
    EXPECT_EQ(resumed(), bits[0]) << size;
  }
}

TEST_P(CheckpointFolderOf, PassesOverOnesInWhichABitFlipped) {
  const auto bits = write_some(2);
  const auto newest = folder().files().back();
  const std::string whole = contents(newest);
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  int found = 0;
  constexpr int kRounds = 60;
  for (int i = 0; i < kRounds; ++i) {
    std::string flipped = whole;
    const std::size_t place = random() % whole.size();
    flipped[place] = static_cast<char>(flipped[place] ^ (1 << random() % 8));
    std::ofstream(newest, std::ios::binary) << flipped;
    // LibTorch's padding may change: no reader uses it.
    const std::string now = resumed();
    EXPECT_TRUE(now == bits[0] || now == bits[1])
        << "seed " << seed << " byte " << place << ": " << now;
    found += now == bits[0] ? 1 : 0;
  }
  if (GetParam() == CheckpointFormat::kSafetensors) {
    EXPECT_EQ(found, kRounds) << "seed " << seed;
  }
}

TEST_P(CheckpointFolderOf, SaysSoWhereAllAreDamaged) {
  write_some(2);
  for (const auto& path : folder().files()) std::ofstream(path) << "x";
  EXPECT_THAT(resumed(),
              AllOf(HasSubstr("none of the checkpoints can be used"),
                    HasSubstr("checkpoint-000001"),
                    HasSubstr("checkpoint-000002"), HasSubstr("next:")));
}

TEST_P(CheckpointFolderOf, RefusesALaterFormatRatherThanTakeAnOlderFile) {
  write_some(2);
  const auto newest = folder().files().back();
  TensorArchive archive = parse_archive(read_bytes(newest), "newest");
  archive.metadata["lockstep.checkpoint"] = "2";
  archive.metadata["lockstep.checksum"] = "of another kind";
  write_archive(newest, archive, GetParam());
  EXPECT_THAT(resumed(), AllOf(HasSubstr("is a checkpoint of format 2, and "
                                         "this program knows formats up to 1"),
                               HasSubstr("later version")));
}

TEST_P(CheckpointFolderOf, RefusesAnotherModelAndAnotherJobUnchanged) {
  write_some(1);
  EXPECT_THAT(resumed(5),
              AllOf(HasSubstr("belongs to another model"),
                    HasSubstr("\"linear.weight\" is float32 [4, 3] in the "
                              "file, float32 [4, 5] in the model")));
  on_ranks(1, [&](const Group& group) {
    Loop loop(group);
    TrainingState state = loop.state();
    state.job["data"] = "read";
    EXPECT_THAT(error_text([&] { folder_on(group).resume(state); }),
                HasSubstr("data was drawn, but is read now"));
    // A property that the program added later.
    state = loop.state();
    state.job["size"] = "3";
    EXPECT_THAT(error_text([&] { folder_on(group).resume(state); }),
                HasSubstr("size was not known, but is 3 now"));
    state.job_defaults["size"] = "2";
    EXPECT_THAT(error_text([&] { folder_on(group).resume(state); }),
                HasSubstr("size was 2, but is 3 now"));
    state.job_defaults["size"] = "3";
    EXPECT_NO_THROW(folder_on(group).resume(state));
    state = loop.state();
    state.counters["more"] = &loop.step;
    EXPECT_THAT(error_text([&] { folder_on(group).resume(state); }),
                HasSubstr("lacks \"counter.more\""));
    torch::optim::Adam adam(loop.net->parameters());
    state = loop.state();
    state.optimizer = &adam;
    EXPECT_THAT(error_text([&] { folder_on(group).resume(state); }),
                HasSubstr("of kind sgd, and the optimizer of kind adam"));
  });
}

TEST_P(CheckpointFolderOf, RefusesATrainedModelThatIsNoCheckpoint) {
  const auto path = directory_ / "model";
  save_checkpoint(path, NetInFolder(), {}, GetParam());
  on_ranks(2, [&](const Group& group) {
    Loop loop(group);
    const std::string text =
        error_text<Error>([&] { folder_on(group).load(path, loop.state()); });
    EXPECT_THAT(text, HasSubstr("is not a checkpoint to resume from"));
    EXPECT_THAT(error_text<Error>([&] {
                  folder_on(group).load(directory_ / "absent", loop.state());
                }),
                HasSubstr("No such file"));
    EXPECT_THAT(error_text<Error>([&] {
                  folder_on(group).load(directory_.path(), loop.state());
                }),
                HasSubstr("holds no checkpoint"));
    group->barrier().wait();  // which still works
  });
}

TEST_P(CheckpointFolderOf, LoadsAtAnotherNumberOfRanks) {
  double sum = 0;
  on_ranks(2, [&](const Group& group) {
    Loop loop(group);
    loop.train(2);
    folder_on(group).save(loop.state(), loop.step);
    const at::Tensor total = loop.own.clone();
    group->all_reduce(view(total), ReduceOp::kSum).wait();
    if (group->rank() == 0) sum = total[0].item<double>();
  });
  for (const int ranks : {1, 3}) {
    std::vector<std::string> drawn(static_cast<std::size_t>(ranks));
    on_ranks(ranks, [&](const Group& group) {
      Loop loop(group);
      folder_on(group).resume(loop.state());
      EXPECT_EQ(loop.step, 2);
      const double own = loop.own[0].item<double>();
      EXPECT_FLOAT_EQ(own, group->rank() == 0 ? sum : 0);
      const at::Tensor numbers = at::rand({4}, loop.generator);
      drawn[static_cast<std::size_t>(group->rank())] =
          at::toString(numbers.scalar_type()) +
          std::to_string(numbers[0].item<double>());
    });
    EXPECT_EQ(std::set(drawn.begin(), drawn.end()).size(), drawn.size());
  }
}

TEST(CheckpointFolder, NamesItsNeedsWhenItIsMade) {
  EXPECT_THAT(error_text([] { CheckpointFolder("x", {.keep = 0}); }),
              HasSubstr("the minimum is 1"));
}

TEST(CheckpointFolder, WithoutANameIsTheWorkingDirectory) {
  const TestDirectory directory;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  CheckpointFolder folder("");
  write_checkpoint(folder, {}, 1);
  write_checkpoint(folder, {}, 2);
  EXPECT_EQ(folder.files().size(), 2u);
  EXPECT_TRUE(folder.newest());
  std::filesystem::current_path(before);
  EXPECT_THAT(directory.entries(),
              UnorderedElementsAre(".lock", "checkpoint-000001.safetensors",
                                   "checkpoint-000002.safetensors"));
}

TEST(CheckpointFolder, IgnoresWhatIsNoCheckpointAndDeletesLeftovers) {
  const TestDirectory directory;
  for (const char* name :
       {"checkpoint-1.safetensors.bak", "checkpoint-.pt", "model.safetensors",
        ".checkpoint-000001.safetensors.7-0.tmp"})
    std::ofstream(directory / name) << "x";
  CheckpointFolder folder(directory.path());
  EXPECT_EQ(folder.newest(), std::nullopt);
  write_checkpoint(folder, {}, 1);
  EXPECT_THAT(directory.entries(),
              UnorderedElementsAre(".lock", "checkpoint-1.safetensors.bak",
                                   "checkpoint-.pt", "model.safetensors",
                                   "checkpoint-000001.safetensors"));
}

// Otherwise the later one would count as the newest, and the run that went back
// would lose what it saves.
TEST(CheckpointFolder, RefusesAnEarlierStepThanThatOfAWholeCheckpoint) {
  const TestDirectory directory;
  run_ranks("shm", 2, [&](const Group& group) {
    const TrainingState state{.model = torch::nn::Linear(2, 2).ptr()};
    CheckpointFolder folder(directory.path(), {.group = group});
    for (const int step : {1, 5}) folder.save(state, step);
    const auto refusal = [&](std::int64_t step) {
      return error_text<Error>([&] { folder.save(state, step); });
    };
    EXPECT_THAT(refusal(4), AllOf(HasSubstr("holds \"checkpoint-000005."),
                                  HasSubstr("of a later step than 4"),
                                  HasSubstr("next:    save to another")));
    EXPECT_THAT(refusal(-1), HasSubstr("cannot be of step -1"));
    EXPECT_EQ(folder.files().size(), 2u);
    group->barrier().wait();
    if (group->rank() == 0) std::ofstream(folder.files()[1]) << 1;
    group->barrier().wait();
    EXPECT_EQ(folder.resume(state), folder.files()[0]);
    folder.save(state, 4);  // the later one is known to be damaged
    folder.save(state, 5);  // and is replaced
    EXPECT_EQ(folder.newest(), folder.files()[2]);
    EXPECT_EQ(folder.files().size(), 3u);
  });
}

TEST(CheckpointFolder, ReplacesOneOfTheSameStepInTheOtherFormat) {
  const TestDirectory directory;
  for (const CheckpointFormat format :
       {CheckpointFormat::kSafetensors, CheckpointFormat::kLibTorch}) {
    CheckpointFolder folder(directory.path(), {.format = format});
    write_checkpoint(folder, {}, 3);
  }
  EXPECT_THAT(directory.entries(),
              UnorderedElementsAre(".lock", "checkpoint-000003.pt"));
}

// Issue 43: LibTorch cannot read the name that it writes.
TEST(CheckpointFolder, DeletesNothingForACheckpointThatCouldNotBeRead) {
  const TestDirectory directory;
  run_ranks("shm", 2, [&](const Group& group) {
    Loop loop(group);
    CheckpointFolder folder(
        directory.path(),
        {.keep = 1, .format = CheckpointFormat::kLibTorch, .group = group});
    folder.save(loop.state(), 1);
    const std::string saved = loop.bits();
    loop.train(1);
    for (const char* name : {"in", "a\"b", "a\nb"}) {
      TrainingState state = loop.state();
      state.counters = {{name, &loop.step}};
      EXPECT_THAT(error_text<Error>([&] { folder.save(state, 2); }),
                  HasSubstr("LibTorch's format cannot hold the name"))
          << name;
    }
    folder.resume(loop.state());
    EXPECT_EQ(loop.bits(), saved);
  });
  EXPECT_THAT(directory.entries(),
              UnorderedElementsAre(".lock", "checkpoint-000001.pt"));
}

TEST(CheckpointFolder, IsRefusedToASecondRunAndLeftAsItWas) {
  const TestDirectory directory;
  CheckpointFolder first(directory / "runs/1");
  write_checkpoint(first, {}, 1);
  run_ranks("shm", 2, [&](const Group& whole) {
    // The timeout is a second; a folder waits half of it for the other run to
    // end.
    const Group group =
        split(*whole, {.color = 0}, {.timeout = std::chrono::seconds(1)});
    CheckpointFolder second(directory / "runs/1", {.group = group});
    Loop loop(group);
    EXPECT_THAT(error_text<Error>([&] { second.save(loop.state(), 1); }),
                AllOf(HasSubstr("runs/1\" is in use: this process"),
                      HasSubstr("next:    use that one, or destroy it")));
    EXPECT_TRUE(second.newest());  // reading is harmless
    EXPECT_NO_THROW(group->barrier().wait());
  });
  EXPECT_EQ(first.files().size(), 1u);
}

TEST(CheckpointFolder, IsItsRunsAgainAfterItWasDeletedMeanwhile) {
  const TestDirectory directory;
  CheckpointFolder folder(directory / "runs/1");
  write_checkpoint(folder, {}, 1);
  std::filesystem::remove_all(directory / "runs/1");
  write_checkpoint(folder, {}, 1);
  EXPECT_THAT(error_text([&] {
                const FolderLock another(directory / "runs/1",
                                         std::chrono::seconds(0));
              }),
              HasSubstr("is in use"));
}

}  // namespace
}  // namespace lockstep
