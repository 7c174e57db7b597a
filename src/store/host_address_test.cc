#include "src/store/host_address.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep {
namespace {

std::string towards(const std::string& master_address) {
  Settings settings;
  settings.master_address = master_address;
  settings.master_port = 29500;
  return choose_host_address(settings);
}

TEST(TheHostsAddress, IsLoopbackWhereTheStoresIsForEveryHost) {
  EXPECT_EQ(towards("127.0.0.1"), "127.0.0.1");
}

// A host's own name is loopback on Debian. "127.1" is such a name: only the
// resolver maps it to loopback.
TEST(TheHostsAddress, IsAnInterfacesWhereTheStoresIsLoopbackHereAlone) {
  Settings of_any_host;
  of_any_host.store = "file:///tmp/store";
  EXPECT_EQ(towards("127.1"), choose_host_address(of_any_host));
}

}  // namespace
}  // namespace lockstep
