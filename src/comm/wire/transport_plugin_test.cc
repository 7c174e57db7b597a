#include "src/comm/wire/transport_plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "lockstep/base/error.h"
#include "src/base/text_file.h"
#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Plugin : public testing::Test {
 protected:
  Plugin() {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    settings_.plugin_path = folder_;
  }
  ~Plugin() override { std::filesystem::remove_all(folder_); }

  std::string error_of(const std::string& name) const {
    try {
      load_transport(name, settings_);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "found";
  }

  static std::string programs_folder() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path();
  }

  std::string folder_ = testing::TempDir() + "lockstep-plugin-XXXXXX";
  Settings settings_;
};

TEST_F(Plugin, ThatIsNowhereIsReportedWithEveryPlaceAndTheNextStep) {
  EXPECT_THAT(
      error_of("carrier_pigeon"),
      AllOf(HasSubstr("liblockstep_carrier_pigeon.so is neither in " + folder_),
            HasSubstr(", " + programs_folder() + ", "),
            HasSubstr(programs_folder() + "/lockstep, "),
            HasSubstr("/lib/lockstep, "), HasSubstr("the loader's path"),
            HasSubstr("\n  next:    install "),
            HasSubstr("LOCKSTEP_PLUGIN_PATH")));
}

TEST_F(Plugin, ThatCannotBeLoadedIsReportedWithTheReason) {
  const std::string file = folder_ + "/liblockstep_broken.so";
  replace_text_file(file, "not a library");
  EXPECT_THAT(error_of("broken"), AllOf(HasSubstr(file + ": file too short"),
                                        HasSubstr("\n  next: ")));
}

TEST_F(Plugin, OfAnotherVersionIsPassedOver) {
  const std::string file = folder_ + "/liblockstep_older.so";
  std::filesystem::copy(LOCKSTEP_OLDER_PLUGIN, file);
  EXPECT_THAT(error_of("older"),
              HasSubstr(file + " is of another version of Lockstep"));
  for (const PluginStatus& plugin : plugin_status({})) {
    if (!plugin.found) continue;
    std::filesystem::copy(LOCKSTEP_OLDER_PLUGIN,
                          folder_ + "/liblockstep_" + plugin.name + ".so");
    EXPECT_EQ(error_of(plugin.name), "found");
  }
}

TEST_F(Plugin, IsFoundFromAProgramInAnyFolder) {
  // This program's folder contains no plug-ins.
  for (const char* name : {"gloo", "mpi"}) {
    const std::string file =
        LOCKSTEP_TEST_PLUGINS "/liblockstep_" + std::string(name) + ".so";
    if (!std::filesystem::exists(file)) continue;
    EXPECT_NO_THROW(load_transport(name, {}));
    EXPECT_EQ(plugin_folder(), LOCKSTEP_TEST_PLUGINS);
  }
}

TEST_F(Plugin, OfGlooSurvivesAPeerThatIsGoneBeforeItIsConnected) {
  if (!plugin_status({}).front().found) GTEST_SKIP() << "there is no gloo";
  const LockstepTransportTable& table = load_transport("gloo", {});
  const FileDescriptor broken(::socket(AF_INET, SOCK_STREAM, 0));
  const std::array<std::int32_t, 2> sockets{-1, broken.get()};
  const LockstepTransportConfig config{.rank = 0,
                                       .size = 2,
                                       .sockets = sockets.data(),
                                       .world_ranks = nullptr,
                                       .group = "gone"};
  LockstepTransport* transport = nullptr;
  LockstepTransportOutcome outcome{};
  EXPECT_EQ(table.create(&config, &transport, &outcome), kTransportBroken);
  EXPECT_EQ(outcome.peer, 1);
  EXPECT_THAT(outcome.text, HasSubstr("rank 1 ended"));
}

}  // namespace
}  // namespace lockstep
