// Steps that `lockstep status` sees without a change in the program.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/torch/distributed_data_parallel.h"
#include "src/base/testing/test_directory.h"
#include "src/comm/group/group_core.h"
#include "src/net/step_memory.h"

namespace lockstep {
namespace {

TEST(StepCount, IsThatOfBackwardPassesThatReduceGradients) {
  const TestDirectory folder;
  const std::string path = (folder / "steps").string();
  const FileDescriptor file = create_step_memory(path, 1);
  Settings settings;
  settings.steps_file = path;
  settings.local_rank = 0;
  const auto group =
      make_group("shm", {.rank = 0, .size = 1},
                 std::make_shared<World>(open_store("memory:"), settings));
  auto model = DistributedDataParallel(torch::nn::Linear(3, 2),
                                       {.group = group, .reduce_alone = true});
  const auto steps = [&] { return read_rank_steps(file, 0).value().steps; };
  const auto pass = [&] { model(at::ones({4, 3})).sum().backward(); };
  EXPECT_EQ(steps(), 0u);
  pass();
  pass();
  EXPECT_EQ(steps(), 2u);
  {
    const NoSync scope = model.no_sync();
    pass();
    EXPECT_EQ(steps(), 2u);
  }
  pass();
  EXPECT_EQ(steps(), 3u);
}

}  // namespace
}  // namespace lockstep
