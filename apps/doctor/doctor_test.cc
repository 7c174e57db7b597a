#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <optional>
#include <string>

#include "apps/doctor/doctor_command.h"
#include "apps/doctor/doctor_findings.h"
#include "lockstep/base/error.h"
#include "src/base/testing/lookup_in.h"
#include "src/base/testing/test_directory.h"
#include "src/base/text_file.h"
#include "src/store/tcp_store_server.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

std::optional<std::string> nothing_set(const std::string&) {
  return std::nullopt;
}

TEST(Doctor, FindsThatTrainingWorksHere) {
  const DoctorReport report = examine(nothing_set);
  EXPECT_TRUE(report.can_train()) << to_text(report);
  EXPECT_EQ(try_shared_memory().health, Health::kGood);
  for (const Finding& finding : report.findings) {
    EXPECT_FALSE(finding.topic.empty());
    EXPECT_FALSE(finding.text.empty()) << finding.topic;
  }
}

std::string topics(const DoctorReport& report) {
  std::string text;
  for (const Finding& finding : report.findings) text += finding.topic + ";";
  return text;
}

TEST(Doctor, LooksAtAllThatMatters) {
  if (!look_at_gpus().gpus.empty()) GTEST_SKIP() << "there are GPUs";
  EXPECT_EQ(topics(examine(nothing_set)),
            "backend shm;shared heap;process handles;backend gloo;backend mpi;"
            "backend nccl;mpirun, srun;network;ports;cores;vector units;memory;"
            "memory limits;limits;LibTorch;");
}

TEST(Doctor, SaysWhatToInstallForAPluginThatCannotBeLoaded) {
  const TestDirectory made;
  const std::string folder = made.path();
  replace_text_file(folder + "/liblockstep_mpi.so", "not a library");
  Settings settings;
  settings.plugin_path = folder;
  for (const Finding& plugin : examine_plugins(settings)) {
    if (plugin.topic != "backend mpi" || plugin.health == Health::kGood)
      continue;  // an installation has it at the next place
    EXPECT_THAT(plugin.text, HasSubstr("started by mpirun or srun; not here"));
    EXPECT_THAT(plugin.next, HasSubstr("install libopenmpi-dev"));
  }
}

TEST(Doctor, IsContentWithoutGpus) {
  const Finding gpus = examine_plugins({}).back();
  EXPECT_EQ(gpus.topic, "backend nccl");
  EXPECT_NE(gpus.health, Health::kBad);
  EXPECT_THAT(gpus.text, HasSubstr("between GPUs; "));
  if (gpus.health == Health::kGood) GTEST_SKIP() << "there are GPUs";
  EXPECT_THAT(gpus.text, HasSubstr("NVIDIA driver"));
}

TEST(Doctor, ListsGpusAndWhoUsesThem) {
  const GpuInventory inventory{
      .driver = "580.95.05",
      .gpus = {
          {.name = "NVIDIA Imaginary",
           .total_bytes = std::uint64_t{8} << 30,
           .used_bytes = std::uint64_t{2} << 30,
           .processes = {{.pid = 4711, .bytes = std::uint64_t{1} << 30}}}}};
  const auto findings = list_gpus(inventory);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].topic, "GPU 0");
  EXPECT_EQ(findings[0].health, Health::kGood);
  EXPECT_THAT(
      findings[0].text,
      testing::AllOf(
          HasSubstr("NVIDIA Imaginary, 2.0 of 8.0 GiB used, 1 process"),
          HasSubstr("driver 580.95.05"), HasSubstr("process 4711: 1024 MiB")));
}

TEST(Doctor, FindsTheProgramsThatStartMpisRanks) {
  const TestDirectory made;
  const std::string folder = made.path();
  const auto path = [&](const std::string& name) {
    return name == "PATH" ? std::optional(folder) : std::nullopt;
  };
  const Finding none = examine_mpi_launchers(path);
  EXPECT_EQ(none.health, Health::kLimited);
  EXPECT_THAT(none.next, HasSubstr("apt-get install openmpi-bin"));
  replace_text_file(folder + "/srun", "#!/bin/sh\n");
  std::filesystem::permissions(folder + "/srun",
                               std::filesystem::perms::owner_all);
  const Finding found = examine_mpi_launchers(path);
  EXPECT_EQ(found.health, Health::kGood);
  EXPECT_EQ(found.text, folder + "/srun");
}

TEST(Doctor, NamesTheInterfaceThatRanksWouldUse) {
  Settings settings;
  EXPECT_THAT(examine_network(settings).text,
              HasSubstr("ranks here would use 127.0.0.1"));
  settings.interface = "no such interface";
  const Finding refused = examine_network(settings);
  EXPECT_EQ(refused.health, Health::kLimited);
  EXPECT_THAT(refused.next, HasSubstr("\"no such interface\""));
}

TEST(Doctor, FindsAPortThatAnotherProgramHolds) {
  const TcpStoreServer other("127.0.0.1", 0, "");
  Settings settings;
  settings.master_port = other.port();
  const Finding taken = examine_ports(settings);
  EXPECT_EQ(taken.health, Health::kLimited);
  EXPECT_THAT(taken.text, HasSubstr(std::to_string(other.port()) +
                                    " (MASTER_PORT) is taken"));
  EXPECT_THAT(taken.next, HasSubstr("MASTER_PORT"));
  // A rank's own job holds its port.
  settings.world_size = 2;
  EXPECT_EQ(examine_ports(settings).health, Health::kGood);
}

TEST(Doctor, SaysWhatToDoWhereSomethingIsMissing) {
  const DoctorReport report{{{.topic = "a", .text = "fine"},
                             {.topic = "heap",
                              .health = Health::kLimited,
                              .text = "small",
                              .next = "make it large"}}};
  EXPECT_TRUE(report.can_train());
  EXPECT_THAT(to_text(report), HasSubstr("  ok  a     fine\n"
                                         "  --  heap  small\n"
                                         "            next: make it large\n"
                                         "Training on this host works.\n"));
  EXPECT_THAT(to_json(report), HasSubstr("\"health\": \"limited\""));
}

TEST(Doctor, FailsWhenSomethingIsBad) {
  const DoctorReport report{
      {{.topic = "shm", .health = Health::kBad, .text = "no memfd"}}};
  EXPECT_FALSE(report.can_train());
  EXPECT_THAT(to_text(report), HasSubstr("  NO  shm  no memfd\n"
                                         "Training on this host does not"));
  EXPECT_THAT(to_json(report), HasSubstr("\"can_train\": false"));
}

TEST(Doctor, NoticesALimitThatForbidsTheHeap) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Finding finding = try_heap(Settings{});
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(finding.health, Health::kLimited);
  EXPECT_THAT(finding.next, HasSubstr("ulimit -f"));
}

TEST(Doctor, RefusesAnEnvironmentThatCannotBeRead) {
  EXPECT_THROW(examine(lookup_in({{"RANK", "two"}})), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
