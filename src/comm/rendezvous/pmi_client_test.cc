#include "src/comm/rendezvous/pmi_client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/testing/fake_hydra.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

// The whole exchange of rank 0; returns the value.
std::string exchange(int descriptor, Deadline deadline = kTimeout) {
  PmiClient pmi(descriptor, deadline);
  pmi.put("key", "a=b,c");
  pmi.barrier();
  std::string value = pmi.get("key");
  pmi.finalize();
  return value;
}

std::string refusal(const Answers& answers) {
  FakeHydra hydra(answers);
  return error_text<Error>([&] { exchange(hydra.descriptor()); });
}

TEST(PmiClient, SpeaksTheProtocol) {
  FakeHydra hydra;
  EXPECT_EQ(exchange(hydra.descriptor()), "a=b,c");
  EXPECT_THAT(
      hydra.lines(),
      ElementsAre("cmd=init pmi_version=1 pmi_subversion=1\n",
                  "cmd=get_maxes\n", "cmd=get_my_kvsname\n",
                  "cmd=put kvsname=kvs_71_0 key=key value=a=b,c\n",
                  "cmd=barrier_in\n", "cmd=get kvsname=kvs_71_0 key=key\n",
                  "cmd=finalize\n"));
}

TEST(PmiClient, TakesTheConnectionOnceForTheProcess) {
  FakeHydra hydra;
  exchange(hydra.descriptor());
  EXPECT_THAT(error_text<Error>([&] { exchange(hydra.descriptor()); }),
              HasSubstr("an earlier attempt of this process has used it"));
  struct stat left {};
  EXPECT_EQ(::fstat(hydra.descriptor(), &left), 0);
  EXPECT_TRUE(S_ISCHR(left.st_mode));  // /dev/null
}

TEST(PmiClient, RefusesADescriptorThatIsNoConnection) {
  const FileDescriptor file(::open("/dev/null", O_RDWR | O_CLOEXEC));
  // A number that is free again may be that of the program's own connection.
  const FileDescriptor listener = listen_at("127.0.0.1", 0);
  const FileDescriptor tcp =
      connect_once(local_address(listener.get()), kTimeout);
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()), 0);
  const FileDescriptor own(pair[0]);
  const FileDescriptor others(pair[1]);
  for (const int descriptor : {file.get(), 1 << 20, tcp.get(), own.get()})
    EXPECT_THAT(error_text<Error>([&] { exchange(descriptor, Deadline(1s)); }),
                HasSubstr("which PMI_FD names, is no connection to mpirun"));
  for (const int kept : {tcp.get(), own.get()}) {
    struct stat left {};
    EXPECT_EQ(::fstat(kept, &left), 0);
    EXPECT_TRUE(S_ISSOCK(left.st_mode));
  }
}

// hydra would end the job when the connection ends, before the rank has told
// what went wrong.
TEST(PmiClient, KeepsTheConnectionWhereItFails) {
  FakeHydra hydra(with("barrier_in", ""));
  EXPECT_THROW(exchange(hydra.descriptor(), 50ms), Timeout);
  EXPECT_FALSE(hydra.has_lost_its_client());
  for (const char* command : {"init", "get_maxes", "put"}) {
    FakeHydra refuses(with(command, "cmd=none\n"));
    EXPECT_THROW(exchange(refuses.descriptor()), NetworkError);
    EXPECT_FALSE(refuses.has_lost_its_client()) << command;
  }
}

TEST(PmiClient, TimesOutOnSilenceAtEveryStep) {
  for (const auto& [command, answer] : kAnswers) {
    FakeHydra hydra(with(command, ""));
    EXPECT_THROW(exchange(hydra.descriptor(), 50ms), Timeout) << command;
  }
  FakeHydra stops_within(with("get", "cmd=get_result rc=0 value=a"));
  EXPECT_THROW(exchange(stops_within.descriptor(), 50ms), Timeout);
}

TEST(PmiClient, SaysThatHydraHasClosedTheConnection) {
  for (const auto& [command, answer] : kAnswers) {
    Answers answers = kAnswers;
    answers.erase(command);
    EXPECT_THAT(refusal(answers), HasSubstr("mpirun closed the connection"))
        << command;
  }
}

TEST(PmiClient, RefusesAnyOtherAnswer) {
  for (const auto& [command, answer] : kAnswers)
    for (const std::string& other :
         {std::string("\n"), std::string("cmd\n"), std::string("cmd=\n"),
          std::string("cmd=response\n"), std::string("= = =\n"),
          std::string("\x1b[2J\0\xff\n", 7), " " + answer.substr(1)})
      EXPECT_THAT(refusal(with(command, other)),
                  testing::AllOf(HasSubstr("to \"cmd=" + command + "\""),
                                 testing::Not(HasSubstr("\x1b"))))
          << command;
}

TEST(PmiClient, QuotesHydrasRefusal) {
  EXPECT_THAT(
      refusal(with("init", "cmd=response_to_init pmi_version=2 rc=-1\n")),
      HasSubstr("PMI answered \"cmd=response_to_init pmi_version=2 rc=-1\" to "
                "\"cmd=init\""));
  EXPECT_THAT(
      refusal(with("get", "cmd=get_result rc=-1 msg=key_not_found value=?\n")),
      HasSubstr("key_not_found"));
  EXPECT_THAT(refusal(with("get", "cmd=get_result rc=0 msg=success\n")),
              HasSubstr("PMI gave no value for \"key\""));
}

TEST(PmiClient, RefusesAnEndlessAnswer) {
  EXPECT_THAT(refusal(with("get", std::string(1 << 20, 'a'))),
              HasSubstr("has more than 65536 bytes"));
}

TEST(PmiClient, ReadsAnAnswerInPieces) {
  const std::vector<FileDescriptor> ends = make_pair_in_another_process();
  const FileDescriptor& client = ends.at(0);
  const FileDescriptor& server = ends.at(1);
  std::thread hydra([&] {
    std::string all;
    for (const char* command : {"init", "get_maxes", "get_my_kvsname", "put",
                                "barrier_in", "get", "finalize"})
      all += kAnswers.at(command);
    for (const char each : all) ::send(server.get(), &each, 1, MSG_NOSIGNAL);
  });
  EXPECT_EQ(exchange(client.get()), "a=b,c");
  hydra.join();
}

TEST(PmiClient, RespectsHydrasLimits) {
  EXPECT_THAT(refusal(with("get_maxes", "cmd=maxes keylen_max=64\n")),
              HasSubstr("PMI takes keys of less than 64 and values of less "
                        "than 0 bytes; these have 3 and 5"));
}

}  // namespace
}  // namespace lockstep
