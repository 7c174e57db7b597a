// Checkpoints in shards: every kind of optimizer, other numbers of ranks, and
// damage.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/gradient_scaler.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/checkpoint/checkpoint_manifest.h"
#include "src/checkpoint/checkpoint_seal.h"
#include "src/checkpoint/checkpoint_set.h"
#include "src/checkpoint/optimizer_tensors.h"
#include "src/checkpoint/tensor_archive.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Group = std::shared_ptr<ProcessGroup>;
using Optimizer = std::unique_ptr<torch::optim::Optimizer>;

// Its weights are of odd sizes, and one is stored channels-last, unless a test
// wants rows.
struct ShardedNet : torch::nn::Module {
  explicit ShardedNet(at::MemoryFormat order = at::MemoryFormat::ChannelsLast)
      : conv(register_module("conv", torch::nn::Conv2d(3, 5, 3))),
        norm(register_module("norm", torch::nn::BatchNorm2d(5))),
        fc(register_module("fc", torch::nn::Linear(5 * 4, 7))) {
    register_buffer("empty", at::empty({0, 3}));
    const at::NoGradGuard no_grad;
    conv->weight.set_data(conv->weight.contiguous(order));
    double value = 0;
    for (at::Tensor& tensor : parameters())
      tensor.copy_(at::arange(tensor.numel())
                       .view(tensor.sizes())
                       .mul(1e-3)
                       .add(value += 0.01));
  }
  at::Tensor forward(const at::Tensor& x) {
    return fc(norm(conv(x)).flatten(1));
  }

  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
  torch::nn::Linear fc;
};

using MakeOptimizer =
    std::function<Optimizer(std::vector<at::Tensor>, const Group&)>;

struct OptimizerKind {
  const char* name;
  MakeOptimizer make;
};

template <class Class, class Options>
MakeOptimizer unsharded(Options options) {
  return [=](std::vector<at::Tensor> parameters, const Group&) -> Optimizer {
    return std::make_unique<Class>(std::move(parameters), options);
  };
}

template <class Options>
MakeOptimizer sharded(Options options) {
  return [=](std::vector<at::Tensor> parameters, const Group& group) {
    return std::make_unique<ZeroRedundancyOptimizer>(
        std::move(parameters), options,
        ZeroRedundancyOptimizerOptions{.group = group});
  };
}

std::vector<OptimizerKind> kinds() {
  using namespace torch::optim;
  return {{"SGD", unsharded<SGD>(SGDOptions(0.1).momentum(0.9))},
          {"FusedSGD", unsharded<FusedSGD>(SGDOptions(0.1).momentum(0.9))},
          {"FusedAdam", unsharded<FusedAdam>(AdamOptions(0.01))},
          {"AdamAmsgrad", unsharded<Adam>(AdamOptions(0.01).amsgrad(true))},
          {"AdamW", unsharded<AdamW>(AdamWOptions(0.01))},
          {"Adagrad", unsharded<Adagrad>(AdagradOptions(0.01))},
          {"RMSprop", unsharded<RMSprop>(RMSpropOptions(0.01).momentum(0.5))},
          {"LBFGS", unsharded<LBFGS>(LBFGSOptions(0.1))},
          {"ShardedSGD", sharded(SGDOptions(0.1).momentum(0.9))},
          {"ShardedPlainSGD", sharded(SGDOptions(0.1))},
          {"ShardedAdamW", sharded(AdamWOptions(0.01).weight_decay(0.1))}};
}

// A run whose ranks have the same model, and each its own numbers.
struct ShardedLoop {
  ShardedLoop(const Group& ranks, const MakeOptimizer& make,
              at::MemoryFormat order = at::MemoryFormat::ChannelsLast)
      : group(ranks),
        net(std::make_shared<ShardedNet>(order)),
        optimizer(make(net->parameters(), ranks)),
        scaler({.group = ranks, .init_scale = 8}),
        generator(default_cpu_generator().clone()),
        own(at::full({2}, 1.0 + ranks->rank())) {
    generator.set_current_seed(7 + static_cast<std::uint64_t>(ranks->rank()));
  }

  TrainingState state() {
    return {.model = net,
            .optimizer = optimizer.get(),
            .scaler = &scaler,
            .counters = {{"step", &step}},
            .generators = {{"numbers", generator}},
            .own = {{"own", own}},
            .job = {{"data", "drawn"}}};
  }

  void train(int steps) {
    for (int i = 0; i < steps; ++i, ++step) {
      const at::Tensor batch =
          at::arange(2 * 3 * 6 * 3).view({2, 3, 6, 3}).add(step).sin();
      optimizer->zero_grad();
      net->forward(batch).square().mean().backward();
      // LibTorch cannot write LBFGS after a step.
      if (dynamic_cast<torch::optim::LBFGS*>(optimizer.get()) == nullptr)
        optimizer->step();
      own.add_(at::rand({2}, generator));
    }
  }

  // What all ranks have, as text: equal for equal bits.
  std::string bits() const {
    std::string text = std::to_string(step);
    for (const auto& [name, tensor] : tensors_of(*net)) {
      const at::Tensor rows = tensor.contiguous();
      text.append(static_cast<const char*>(rows.const_data_ptr()),
                  rows.nbytes());
    }
    return text;
  }
  std::string own_bits() {
    std::string text;
    for (const at::Tensor& tensor : {own, generator.get_state()})
      text.append(static_cast<const char*>(tensor.const_data_ptr()),
                  tensor.nbytes());
    return text;
  }

  Group group;
  std::shared_ptr<ShardedNet> net;
  Optimizer optimizer;
  GradientScaler scaler;
  at::Generator generator;
  at::Tensor own;
  std::int64_t step = 0;
};

CheckpointFolder sharded_folder(const fs::path& path, const Group& group,
                                int keep = 3) {
  return CheckpointFolder(
      path,
      {.keep = keep, .format = CheckpointFormat::kSharded, .group = group});
}

// Trains 3 steps, saves, trains 2 more; returns what all ranks have then.
std::string save_and_go_on(const Group& group, const MakeOptimizer& make,
                           const fs::path& path) {
  ShardedLoop loop(group, make);
  loop.train(3);
  CheckpointFolder folder = sharded_folder(path, group);
  folder.save(loop.state(), 3);
  loop.train(2);  // while it is written
  folder.finish();
  return loop.bits();
}

// Resumes, trains 2 steps; returns what all ranks have then.
std::string resume_and_go_on(const Group& group, const MakeOptimizer& make,
                             const fs::path& path) {
  ShardedLoop loop(group, make);
  EXPECT_EQ(sharded_folder(path, group).resume(loop.state()),
            path / "checkpoint-000003");
  loop.train(2);
  return loop.bits();
}

class ShardedCheckpoint : public ::testing::TestWithParam<OptimizerKind> {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  std::string save_on(int ranks, const fs::path& path) const {
    std::string after;
    run_ranks("shm", ranks, [&](const Group& group) {
      const auto bits = save_and_go_on(group, GetParam().make, path);
      if (group->rank() == 0) after = bits;
    });
    return after;
  }

  std::string resume_on(int ranks, const fs::path& path) const {
    std::string after;
    run_ranks("shm", ranks, [&](const Group& group) {
      const auto bits = resume_and_go_on(group, GetParam().make, path);
      if (group->rank() == 0) after = bits;
    });
    return after;
  }
};

TEST_P(ShardedCheckpoint, ResumesWithTheSameBitsOnAnyNumberOfRanks) {
  for (const int saved_on : {1, 2, 4}) {
    const TestDirectory directory;
    const std::string after = save_on(saved_on, directory.path());
    for (const int ranks : {1, 2, 3})
      EXPECT_EQ(resume_on(ranks, directory.path()), after)
          << "saved on " << saved_on << ", resumed on " << ranks;
  }
}

// The merged file must be the file that the other format has.
TEST_P(ShardedCheckpoint, MergesToTheFileOfTheOtherFormat) {
  const TestDirectory shards, files;
  run_ranks("shm", 3, [&](const Group& group) {
    ShardedLoop loop(group, GetParam().make);
    loop.train(2);
    CheckpointFolder set = sharded_folder(shards.path(), group);
    set.save(loop.state(), 2);
    set.finish();
    CheckpointFolder single(files.path(), {.group = group});
    single.save(loop.state(), 2);
  });
  merge_checkpoint(CheckpointSet(shards / "checkpoint-000002"),
                   shards / "merged.safetensors");
  const auto read = [](const fs::path& path) {
    const TensorArchive archive =
        parse_archive(read_bytes(path), path.string());
    check_seal(archive, path.string());
    return read_whole_file(path);
  };
  const auto merged = read(shards / "merged.safetensors");
  const auto single = read(files / "checkpoint-000002.safetensors");
  if (std::string(GetParam().name) == "LBFGS") return;  // names addresses
  EXPECT_EQ(merged, single);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, ShardedCheckpoint,
                         ::testing::ValuesIn(kinds()),
                         [](const auto& kind) { return kind.param.name; });

const MakeOptimizer kShardedSgd =
    sharded(torch::optim::SGDOptions(0.1).momentum(0.9));

// A folder with the sets of steps 1 and 2, of two ranks.
void save_two(const fs::path& path) {
  run_ranks("shm", 2, [&](const Group& group) {
    ShardedLoop loop(group, kShardedSgd);
    CheckpointFolder folder = sharded_folder(path, group);
    for (int step = 1; step <= 2; ++step) {
      loop.train(1);
      folder.save(loop.state(), step);
    }
    folder.finish();
  });
}

// The step from which two ranks resume.
std::int64_t resumed_step(const fs::path& path) {
  std::int64_t step = 0;
  run_ranks("shm", 2, [&](const Group& group) {
    ShardedLoop loop(group, kShardedSgd);
    sharded_folder(path, group).resume(loop.state());
    if (group->rank() == 1) step = loop.step;
  });
  return step;
}

std::string bytes_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void overwrite(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

const std::string kShard0 = "shard-00000-of-00002.safetensors";
const std::string kShard1 = "shard-00001-of-00002.safetensors";

TEST(ShardsOfACheckpoint, RestoreEachRanksOwnNumbers) {
  const TestDirectory directory;
  std::vector<std::string> saved(2), restored(2);
  for (const bool resumes : {false, true})
    run_ranks("shm", 2, [&](const Group& group) {
      ShardedLoop loop(group, kShardedSgd);
      CheckpointFolder folder = sharded_folder(directory.path(), group);
      auto& bits =
          (resumes ? restored : saved)[static_cast<std::size_t>(group->rank())];
      if (resumes) {
        folder.resume(loop.state());
      } else {
        loop.train(2);
        folder.save(loop.state(), 2);
        folder.finish();
      }
      bits = loop.own_bits();
    });
  EXPECT_EQ(saved, restored);
  EXPECT_NE(saved[0], saved[1]);
}

// Between hosts no group has a duplicate: save() itself writes.
TEST(ShardsOfSeveralHosts, RestoreTheSameBits) {
  for (const std::string backend : {"gloo", "hybrid"}) {
    const TestDirectory directory;
    std::string whole, resumed;
    run_ranks_on({"a", "a", "b"}, backend, [&](const Group& group) {
      const auto bits = save_and_go_on(group, kShardedSgd, directory.path());
      if (group->rank() == 0) whole = bits;
    });
    run_ranks_on({"a", "b"}, backend, [&](const Group& group) {
      const auto bits = resume_and_go_on(group, kShardedSgd, directory.path());
      if (group->rank() == 1) resumed = bits;
    });
    EXPECT_EQ(resumed, whole) << backend;
  }
}

// Between an optimizer on each rank and a sharded one, either way.
TEST(ShardsOfACheckpoint, AreReadByTheOtherKindOfOptimizer) {
  const auto rule = torch::optim::AdamWOptions(0.01).weight_decay(0.1);
  const std::array<MakeOptimizer, 2> makes{unsharded<FusedAdamW>(rule),
                                           sharded(rule)};
  for (const bool was_sharded : {false, true}) {
    const TestDirectory directory;
    std::string whole, resumed;
    run_ranks("shm", 2, [&](const Group& group) {
      const auto bits =
          save_and_go_on(group, makes[was_sharded ? 1 : 0], directory.path());
      if (group->rank() == 0) whole = bits;
    });
    run_ranks("shm", 3, [&](const Group& group) {
      const auto bits =
          resume_and_go_on(group, makes[was_sharded ? 0 : 1], directory.path());
      if (group->rank() == 0) resumed = bits;
    });
    EXPECT_EQ(resumed, whole) << "saved by a sharded one: " << was_sharded;
  }
}

// A shard plan cuts a weight in the order of its memory, which another program
// may choose differently.
TEST(ShardsOfACheckpoint, AreReadIntoWeightsOfAnotherOrder) {
  const TestDirectory shards, files;
  run_ranks("shm", 2, [&](const Group& group) {
    ShardedLoop loop(group, kShardedSgd);
    loop.train(2);
    CheckpointFolder folder = sharded_folder(shards.path(), group);
    folder.save(loop.state(), 2);
    folder.finish();
  });
  run_ranks("shm", 2, [&](const Group& group) {
    ShardedLoop loop(group, kShardedSgd, at::MemoryFormat::Contiguous);
    sharded_folder(shards.path(), group).resume(loop.state());
    CheckpointFolder(files.path(), {.group = group}).save(loop.state(), 2);
  });
  merge_checkpoint(CheckpointSet(shards / "checkpoint-000002"),
                   shards / "merged.safetensors");
  EXPECT_EQ(read_whole_file(shards / "merged.safetensors"),
            read_whole_file(files / "checkpoint-000002.safetensors"));
}

TEST(ShardsOfACheckpoint, HoldEachByteOnce) {
  const TestDirectory directory;
  save_two(directory.path());
  const CheckpointSet set(directory / "checkpoint-000002");
  std::uint64_t data = 0, files = 0;
  for (const auto& [name, tensor] : set.tensors())
    data += tensor.elements() * size_of(tensor.type);
  for (const ShardFile& shard : set.manifest().shards) files += shard.bytes;
  EXPECT_LT(data, files);
  for (const ShardFile& shard : set.manifest().shards) {
    const auto header = read_safetensors_header(set.path() / shard.file);
    std::uint64_t bytes = 0;
    for (const auto& tensor : header.tensors)
      bytes += tensor.end - tensor.begin;
    EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(data) / 2, 6000)
        << shard.file;
    data -= bytes;
    if (shard.file == kShard0) data += bytes;
  }
}

// Whatever happens to the newest set, the one before it is used.
TEST(DamagedShards, MakeTheRunTakeTheCheckpointBefore) {
  const TestDirectory directory;
  save_two(directory.path());
  const fs::path newest = directory / "checkpoint-000002";
  const fs::path before = directory / "checkpoint-000001";
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  ASSERT_EQ(resumed_step(directory.path()), 2);
  const auto expect_skipped = [&](const std::string& name,
                                  const std::string& reason,
                                  const std::function<void()>& damage) {
    const std::string content = bytes_of_file(newest / name);
    damage();
    EXPECT_EQ(resumed_step(directory.path()), 1) << name << ": " << reason;
    const std::string text = error_text<InvalidArgument>(
        [&] { CheckpointSet(newest).check_shards(); });
    // Where two shards' parts no longer fit, the fault may be the other's.
    EXPECT_THAT(text,
                AllOf(HasSubstr(reason.empty() ? newest.string() : name),
                      HasSubstr(reason), HasSubstr("earlier checkpoint")));
    EXPECT_EQ(CheckpointFolder(directory.path()).newest(), before);
    overwrite(newest / name, content);
  };
  for (const std::string& name : {kShard0, kShard1}) {
    const std::string content = bytes_of_file(newest / name);
    expect_skipped(name, "it is missing", [&] { fs::remove(newest / name); });
    expect_skipped(name, "bytes, expected", [&] {
      overwrite(newest / name, content.substr(0, random() % content.size()));
    });
    for (int i = 0; i < 8; ++i) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      std::string flipped = content;
      const std::size_t byte = random() % content.size();
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << (random() % 8)));
      expect_skipped(name, "", [&] { overwrite(newest / name, flipped); });
    }
    expect_skipped(name, "of step \"1\", expected rank", [&] {
      overwrite(newest / name, bytes_of_file(before / name));
    });
  }
}

TEST(DamagedShards, AreAnErrorWhereASetIsNamed) {
  const TestDirectory directory;
  save_two(directory.path());
  const fs::path newest = directory / "checkpoint-000002";
  std::string content = bytes_of_file(newest / kShard1);
  content.back() = static_cast<char>(content.back() ^ 1);
  overwrite(newest / kShard1, content);
  run_ranks("shm", 2, [&](const Group& group) {
    ShardedLoop loop(group, kShardedSgd);
    CheckpointFolder folder = sharded_folder(directory.path(), group);
    EXPECT_THAT(error_text<Error>([&] { folder.load(newest, loop.state()); }),
                AllOf(HasSubstr(kShard1), HasSubstr("its checksum is")));
    EXPECT_EQ(loop.step, 0);
    folder.load(directory / "checkpoint-000001", loop.state());
    EXPECT_EQ(loop.step, 1);
  });
  EXPECT_THAT(error_text<InvalidArgument>([&] {
                ShardedNet net;
                load_checkpoint(newest, net);
              }),
              HasSubstr(kShard1));
}

TEST(AFolderWithoutAManifest, IsNoCheckpoint) {
  const TestDirectory directory;
  save_two(directory.path());
  fs::remove(directory / "checkpoint-000002" / kManifestName);
  EXPECT_EQ(resumed_step(directory.path()), 1);
  run_ranks("shm", 1, [&](const Group& group) {
    ShardedLoop loop(group, kShardedSgd);
    CheckpointFolder folder = sharded_folder(directory.path(), group);
    EXPECT_THAT(error_text<InvalidArgument>([&] {
                  folder.load(directory / "checkpoint-000002", loop.state());
                }),
                HasSubstr("holds shards, but no manifest.json"));
  });
}

TEST(ASetInAFolder, ReplacesOneOfTheSameStepAndTheOldest) {
  const TestDirectory directory;
  run_ranks("shm", 2, [&](const Group& group) {
    ShardedLoop loop(group, kShardedSgd);
    CheckpointFolder folder = sharded_folder(directory.path(), group, 2);
    for (const int step : {1, 2, 3, 3}) {
      loop.train(1);
      folder.save(loop.state(), step);
    }
    folder.finish();
    if (group->rank() == 0) {
      EXPECT_THAT(folder.files(), ElementsAre(directory / "checkpoint-000002",
                                              directory / "checkpoint-000003"));
      // The lock, and no leftovers.
      EXPECT_EQ(directory.entries().size(), 3u);
      EXPECT_THAT(error_text<InvalidArgument>([&] { folder.check_step(2); }),
                  HasSubstr("checkpoint-000003"));
    }
    group->barrier().wait();
    folder.resume(loop.state());
    EXPECT_EQ(loop.step, 4);
  });
  CheckpointFolder mixed(directory.path(), {.keep = 2});
  run_ranks("shm", 1, [&](const Group& group) {
    ShardedLoop loop(group, kShardedSgd);
    CheckpointFolder single(directory.path(), {.keep = 2, .group = group});
    single.resume(loop.state());
    loop.train(1);
    single.save(loop.state(), 5);
    EXPECT_THAT(single.files(),
                ElementsAre(directory / "checkpoint-000003",
                            directory / "checkpoint-000005.safetensors"));
  });
}

TEST(ASetInAFolder, KeepsTheModesOfTheSetThatItReplaces) {
  namespace fs = std::filesystem;
  constexpr auto kPrivateFile = fs::perms::owner_read | fs::perms::owner_write;
  const TestDirectory directory;
  const fs::path set = directory / "checkpoint-000003";
  const auto save = [&] {
    run_ranks("shm", 2, [&](const Group& group) {
      ShardedLoop loop(group, kShardedSgd);
      CheckpointFolder folder = sharded_folder(directory.path(), group, 2);
      folder.save(loop.state(), 3);
      folder.finish();
    });
  };
  save();
  for (const auto& file : fs::directory_iterator(set))
    fs::permissions(file, kPrivateFile);
  fs::permissions(set, fs::perms::owner_all);
  save();
  EXPECT_EQ(fs::status(set).permissions(), fs::perms::owner_all);
  for (const auto& file : fs::directory_iterator(set))
    EXPECT_EQ(file.status().permissions(), kPrivateFile) << file.path();
}

// Issue 43: a program that destroys its group before the folder ends.
TEST(ASetInAFolder, IsCompleteWhereARankLeavesTheGroupAfterItsLastSave) {
  for (const char* backend : {"shm", "reference"}) {
    const TestDirectory directory;
    run_ranks(backend, 3, [&](const Group& group) {
      ShardedLoop loop(group,
                       unsharded<FusedSGD>(torch::optim::SGDOptions(0.1)));
      CheckpointFolder folder = sharded_folder(directory.path(), group);
      folder.save(loop.state(), 1);
      group->leave();
      if (group->rank() == 0) {
        EXPECT_TRUE(fs::exists(directory / "checkpoint-000001"));
      }
      EXPECT_NO_THROW(folder.finish());
    });
    CheckpointSet(directory / "checkpoint-000001").check_shards();
  }
}

TEST(ASetInAFolder, IsRefusedBeforeItIsWrittenForANameThatIsNotUtf8) {
  const TestDirectory directory;
  run_ranks("shm", 2, [&](const Group& group) {
    ShardedLoop loop(group, unsharded<FusedSGD>(torch::optim::SGDOptions(0.1)));
    CheckpointFolder folder = sharded_folder(directory.path(), group);
    TrainingState state = loop.state();
    state.counters["a\xff"] = &loop.step;
    EXPECT_THAT(error_text<Error>([&] { folder.save(state, 1); }),
                HasSubstr("its name is not UTF-8"));
  });
  EXPECT_TRUE(directory.entries().empty());
}

TEST(ASet, GivesItsModelToPrograms) {
  const TestDirectory directory;
  save_two(directory.path());
  ShardedNet one, other;
  const auto texts = load_checkpoint(directory / "checkpoint-000002", one);
  EXPECT_EQ(texts.at("lockstep.job.data"), "drawn");
  merge_checkpoint(CheckpointSet(directory / "checkpoint-000002"),
                   directory / "m.safetensors");
  load_checkpoint(directory / "m.safetensors", other);
  for (const auto& [name, tensor] : tensors_of(one))
    EXPECT_TRUE(tensor.equal(tensors_of(other).at(name))) << name;
  EXPECT_FALSE(one.fc->weight.equal(ShardedNet().fc->weight));
}

TEST(ASet, IsOfRankZeroWhereOnlyItHasTheModel) {
  const TestDirectory directory;
  run_ranks("shm", 2, [&](const Group& group) {
    ShardedLoop loop(group, unsharded<FusedSGD>(
                                torch::optim::SGDOptions(0.1).momentum(0.9)));
    loop.train(1);
    TrainingState state = loop.state();
    if (group->rank() == 1) {
      state.model = nullptr;
      state.optimizer = nullptr;
    }
    CheckpointFolder folder = sharded_folder(directory.path(), group);
    folder.save(state, 1);
    folder.finish();
    const std::string bits = loop.bits();
    loop.train(1);
    folder.resume(state);
    if (group->rank() == 0) {
      EXPECT_EQ(loop.bits(), bits);
    }
  });
  const CheckpointSet set(directory / "checkpoint-000001");
  for (const auto& [name, tensor] : set.tensors())
    if (name.starts_with("model.")) {
      EXPECT_EQ(tensor.parts.at(0).elements, tensor.elements()) << name;
    }
}

}  // namespace
}  // namespace lockstep
