#include "src/launch/nodes/node.h"

#include <gmock/gmock.h>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

TEST(Node, EndsWhereTheNameOfTheRendezvousStaysUnknown) {
  NodeOptions options;
  options.endpoint = {.host = "no-such-host.invalid", .port = 29400};
  options.join_timeout = 24h;
  options.name_timeout = 1ms;
  const NodeUser user{.ending_signal = [] { return 0; },
                      .tell = [](const std::string&) {}};
  EXPECT_THAT(error_text<NetworkError>([&] { const Node node(options, user); }),
              AllOf(HasSubstr("at no-such-host.invalid:29400 has no address"),
                    HasSubstr("check the name in --rdzv-endpoint")));
}

}  // namespace
}  // namespace lockstep
