// Tests that ranks whose messages have arrived are not among those that a
// collective waits for.
#include "src/comm/wire/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <span>
#include <vector>

#include "src/comm/testing/scripted_transport.h"
#include "src/comm/wire/control_exchange.h"
#include "src/comm/wire/share_pipeline.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

// Rank 0 of four, which waits for rank 1 first. The death keys spare it the
// receives of abort notices.
struct ARankOfFour : testing::Test {
  void comes_from(int peer, LockstepTransportChannel channel,
                  std::size_t bytes) {
    transport.deliver(peer, channel, std::vector<std::byte>(bytes));
  }

  ScriptedTransport transport;
  const std::unique_ptr<WireCore> core =
      transport.make_core(4, open_store("memory:"), {"0", "1", "2", "3"});
};

TEST_F(ARankOfFour, DoesNotMissThoseWhoseCallsHaveCome) {
  ControlExchange control(*core);
  comes_from(2, kChannelControl, sizeof(AnnouncedCall));
  comes_from(3, kChannelControl, sizeof(AnnouncedCall));
  const auto nothing = [](int, std::span<std::byte>) { return std::size_t{0}; };
  EXPECT_THROW(control.run(control.everyone(), AnnouncedCall{}, nothing, 10ms),
               WaitExpired);
  EXPECT_THAT(core->missing(), ElementsAre(1));
}

TEST_F(ARankOfFour, DoesNotMissThoseWhoseCallsHaveComeWhenOneIsLost) {
  ControlExchange control(*core);
  comes_from(2, kChannelControl, sizeof(AnnouncedCall));
  transport.lose(1);
  const auto nothing = [](int, std::span<std::byte>) { return std::size_t{0}; };
  EXPECT_THROW(control.run(control.everyone(), AnnouncedCall{}, nothing, 1min),
               TransportError);
  EXPECT_THAT(core->missing(), ElementsAre(1, 3));
}

// The share has one segment. The others are empty, so that the first one's
// receives are posted when before() is called again.
TEST_F(ARankOfFour, DoesNotMissThoseWhosePartsHaveCome) {
  std::vector<float> data(2);
  const Buffer buffer = view(data);
  const std::size_t bytes = buffer.bytes();
  const PipelineShare share{{std::span(&buffer, 1)}, 0, bytes};
  SharePlan plan;
  plan.contributions.resize(4);
  plan.results.resize(4);
  plan.contributions[0] = plan.results[0] = share;
  plan.sources = {1, 2, 3};
  plan.kernel = reduce_kernel(ReduceOp::kSum, DataType::kFloat32);
  plan.element_bytes = sizeof(float);
  plan.segment_bytes = bytes;
  plan.segments = 2;
  plan.before = [&](std::size_t segment) {
    if (segment == 1) comes_from(3, kChannelCollective, bytes);
  };
  EXPECT_THROW(SharePipeline(*core, plan, 0, 10ms).run(), WaitExpired);
  EXPECT_THAT(core->missing(), ElementsAre(1, 2));
}

}  // namespace
}  // namespace lockstep
