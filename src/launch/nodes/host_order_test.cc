#include "src/launch/nodes/host_order.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_timeout.h"
#include "src/base/version.h"
#include "src/launch/worker/signal_watch.h"
#include "src/net/pipe.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

void write_to(const FileDescriptor& descriptor, const std::string& text) {
  ASSERT_EQ(::write(descriptor.get(), text.data(), text.size()),
            static_cast<ssize_t>(text.size()));
}

HostOrder typical_order() {
  return {.version = std::string(version()),
          .token = "a secret",
          .host = "a",
          .endpoint = "10.0.0.1:4711",
          .directory = "/home/ada/a job",
          .environment = {{"OMP_NUM_THREADS", "2"}},
          .arguments = {"-H", "a,b", "sh", "-c", "echo \"$RANK\"\n'done'"},
          .node_rank = 1,
          .slots = 4,
          .least = 2,
          .most = 2};
}

std::string refusal_of_order(const std::string& line) {
  const Pipe pipe = make_pipe();
  write_to(pipe.write, line);
  return error_text([&] { read_order(pipe.read.get(), kTimeout); });
}

TEST(HostOrder, ArrivesAsItWasAndLeavesWhatFollows) {
  const Pipe pipe = make_pipe();
  write_to(pipe.write, encode_order(typical_order()) + "15\n");
  const HostOrder order = read_order(pipe.read.get(), kTimeout);
  EXPECT_EQ(encode_order(order), encode_order(typical_order()));
  EXPECT_EQ(order.arguments.back(), "echo \"$RANK\"\n'done'");
  std::string rest(3, '\0');
  EXPECT_EQ(::read(pipe.read.get(), rest.data(), rest.size()), 3);
  EXPECT_EQ(rest, "15\n");
}

TEST(HostOrder, IsRefusedFromAnotherVersion) {
  HostOrder order = typical_order();
  order.version = "0.0.1";
  EXPECT_THAT(refusal_of_order(encode_order(order)),
              HasSubstr("the job is started by 0.0.1: install the same"));
}

TEST(HostOrder, IsRefusedWhereItIsMalformed) {
  for (const char* line : {"\n", "{}\n", "[1]\n", "no order\n",
                           "{\"version\": 1}\n", "{\"version\": \"\"}\n"})
    EXPECT_THAT(refusal_of_order(line), HasSubstr("lockstep run -H")) << line;
}

TEST(HostOrder, IsRefusedWhereItIsCutOff) {
  Pipe pipe = make_pipe();
  write_to(pipe.write, "{\"version\"");
  pipe.write.reset();
  EXPECT_THAT(error_text([&] { read_order(pipe.read.get(), kTimeout); }),
              HasSubstr("standard input has no order"));
}

TEST(HostOrder, IsNotWaitedForForEver) {
  const Pipe pipe = make_pipe();
  EXPECT_THROW(
      read_order(pipe.read.get(), Deadline(std::chrono::milliseconds(1))),
      Timeout);
}

TEST(HostOrder, CannotHoldBytesThatAreNotUtf8) {
  HostOrder order = typical_order();
  order.arguments.emplace_back("caf\xe9");
  EXPECT_THAT(error_text([&] { encode_order(order); }),
              HasSubstr("the argument \"caf?\" is not UTF-8"));
  order = typical_order();
  order.environment["DATA"] = "caf\xe9";
  EXPECT_THAT(error_text([&] { encode_order(order); }),
              HasSubstr("the variable DATA is not UTF-8"));
}

TEST(EnvironmentForHosts, IsThatOfTheLibrariesAndWhatTheUserNames) {
  const std::vector<std::string> here{
      "HOME=/home/ada",       "LOCKSTEP_BACKEND=gloo", "LOCKSTEP_TOKEN=secret",
      "LOCKSTEP_STORE=tcp:",  "OMP_NUM_THREADS=2",     "CUDA_VISIBLE_DEVICES=1",
      "LD_LIBRARY_PATH=/lib", "DATA=/data/a=b",        "LANG=C",
      "PET_MAX_RESTARTS=1"};
  EXPECT_THAT(
      environment_for_hosts(here, {"DATA", "NEW=x=y", "EMPTY="}),
      ElementsAre(Pair("DATA", "/data/a=b"), Pair("EMPTY", ""),
                  Pair("LD_LIBRARY_PATH", "/lib"),
                  Pair("LOCKSTEP_BACKEND", "gloo"), Pair("NEW", "x=y"),
                  Pair("OMP_NUM_THREADS", "2"), Pair("PET_MAX_RESTARTS", "1")));
}

TEST(EnvironmentForHosts, RefusesAVariableThatIsNotSet) {
  EXPECT_THAT(error_text([] { environment_for_hosts({"A=1"}, {"B"}); }),
              HasSubstr("give its value as -x B=VALUE"));
  EXPECT_THAT(error_text([] { environment_for_hosts({"A=1"}, {"=1"}); }),
              HasSubstr("NAME or NAME=VALUE"));
}

// The signals that come next, but SIGCHLD.
std::vector<int> next_signals(SignalWatch& watch) {
  for (;;) {
    if (wait_for(watch.descriptor(), POLLIN, kTimeout) != WaitResult::kReady)
      return {};
    std::vector<int> signals = watch.take();
    std::erase(signals, SIGCHLD);
    if (!signals.empty()) return signals;
  }
}

TEST(OrderedSignals, ComeAsNumbersAndEndWithSigterm) {
  SignalWatch watch;
  Pipe pipe = make_pipe();
  const OrderedSignals sender(std::move(pipe.read));
  write_to(pipe.write, std::to_string(SIGINT) + "\n");
  EXPECT_THAT(next_signals(watch), ElementsAre(SIGINT));
  write_to(pipe.write, std::to_string(SIGUSR1) + "\n");
  EXPECT_THAT(next_signals(watch), ElementsAre(SIGUSR1));
  pipe.write.reset();
  EXPECT_THAT(next_signals(watch), ElementsAre(SIGTERM));
}

TEST(OrderedSignals, AreOnlyThoseThatAUserMaySend) {
  SignalWatch watch;
  Pipe pipe = make_pipe();
  const OrderedSignals sender(std::move(pipe.read));
  write_to(pipe.write, "9\n0\n-1\n\nx\n11\n99999999999999999999\n" +
                           std::to_string(SIGHUP) + "\n");
  EXPECT_THAT(next_signals(watch), ElementsAre(SIGHUP));
}

TEST(OrderedSignals, EndWithTheirReaderThoughNoneComes) {
  SignalWatch watch;
  Pipe pipe = make_pipe();
  { const OrderedSignals sender(std::move(pipe.read)); }
  EXPECT_THAT(watch.take(), ElementsAre());
}

}  // namespace
}  // namespace lockstep
