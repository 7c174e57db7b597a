#include "apps/bench/bench_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/comm/groups.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/comm/nccl/gpu_plugin.h"
#include "src/comm/testing/fake_gpu/fake_gpu.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// A world of one rank, which has a fake GPU.
class BenchRankOnAGpu : public testing::Test {
 protected:
  BenchRankOnAGpu() { use_gpu_table(&fake_.table()); }
  ~BenchRankOnAGpu() override {
    destroy_process_group();
    use_gpu_table(nullptr);
  }

  void run(const std::vector<const char*>& more, const Settings& settings) {
    std::vector<const char*> arguments{"all_reduce", "--device",   "cuda",
                                       "--iters",    "1",          "--json",
                                       "--output",   json_.c_str()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    run_bench_rank(parse_bench_options(arguments, {.world_size = 1}), settings);
  }

  const TestDirectory folder_;
  const std::string json_ = (folder_ / "found.json").string();
  const std::string plot_ = (folder_ / "plot.svg").string();
  FakeGpu fake_{
      {.devices = 1, .threads = FakeGpuOptions::Threads::kKnowWhatAnySaw}};
};

TEST_F(BenchRankOnAGpu, SaysTheDeviceInTheDocumentAndThePlot) {
  run({"--bytes", "4,1K", "--plot", plot_.c_str()}, {});
  const auto found = nlohmann::json::parse(contents(json_));
  EXPECT_EQ(found["device"], "cuda");
  EXPECT_EQ(found.value("libraries", ""), fake_.table().libraries);
  EXPECT_FALSE(found.contains("memory"));
  EXPECT_EQ(found["in_place"], true);
  ASSERT_EQ(found["backends"].size(), 1u);
  EXPECT_EQ(found["backends"][0]["backend"], "nccl");
  const auto& rows = found["backends"][0]["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["bytes"], 1024);
  EXPECT_EQ(rows[1]["count"], 256);
  EXPECT_EQ(rows[1]["calls_per_round"], 20);
  EXPECT_THAT(contents(plot_), HasSubstr("on cuda"));
  EXPECT_THAT(fake_.violations(), IsEmpty());
}

TEST_F(BenchRankOnAGpu, IsRefusedBeforeItJoinsOthersWhereThereIsNone) {
  Settings second;
  second.local_rank = 1;
  EXPECT_THAT(error_text([&] { run({}, second); }),
              AllOf(HasSubstr("there is no GPU 1: this process sees 1"),
                    HasSubstr("CUDA_VISIBLE_DEVICES")));
  EXPECT_FALSE(is_initialized());
  fake_.lose_driver("the driver is too old; install a newer one");
  EXPECT_THAT(error_text([&] { run({}, {}); }),
              HasSubstr("the driver is too old; install"));
  EXPECT_FALSE(is_initialized());
}

TEST_F(BenchRankOnAGpu, KeepsWhatNcclHasNotAsAClearError) {
  EXPECT_THAT(error_text([&] {
                run({"--op", "bxor", "--dtype", "int32", "--bytes", "64"}, {});
              }),
              HasSubstr("the backend \"nccl\" cannot do all_reduce"));
}

}  // namespace
}  // namespace lockstep
