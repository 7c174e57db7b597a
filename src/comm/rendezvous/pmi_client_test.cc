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
#include "src/net/wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

using Answers = std::map<std::string, std::string>;

// hydra's answers to one process, by command.
const Answers kAnswers{
    {"init", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"},
    {"get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n"},
    {"get_my_kvsname", "cmd=my_kvsname kvsname=kvs_71_0\n"},
    {"put", "cmd=put_result rc=0 msg=success\n"},
    {"barrier_in", "cmd=barrier_out\n"},
    {"get", "cmd=get_result rc=0 msg=success value=a=b,c\n"},
    {"finalize", "cmd=finalize_ack\n"}};

// hydra's side of a connection. It closes the connection instead of an answer
// that it does not have, and is silent where the answer is empty.
class FakeHydra {
 public:
  explicit FakeHydra(Answers answers = kAnswers)
      : answers_(std::move(answers)) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    client_ = FileDescriptor(ends[0]);
    server_ = FileDescriptor(ends[1]);
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeHydra() {
    ::shutdown(server_.get(), SHUT_RDWR);
    thread_.join();
  }

  bool has_lost_its_client() const {
    return wait_for(server_.get(), POLLRDHUP, 0ms) == WaitResult::kReady;
  }

  // What PMI_FD names.
  int descriptor() const { return client_.get(); }

  // The lines so far; complete once the client has ended the connection.
  const std::vector<std::string>& lines() {
    thread_.join();
    thread_ = std::thread([] {});
    return lines_;
  }

 private:
  void serve() {
    std::string line;
    char next = 0;
    while (::read(server_.get(), &next, 1) == 1) {
      line += next;
      if (next != '\n') continue;
      const std::string command = line.substr(4, line.find_first_of(" \n") - 4);
      lines_.push_back(std::exchange(line, ""));
      const auto answer = answers_.find(command);
      if (answer == answers_.end()) break;
      const std::string& text = answer->second;
      if (::send(server_.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0)
        break;
    }
    ::shutdown(server_.get(), SHUT_RDWR);
  }

  const Answers answers_;
  FileDescriptor client_;
  FileDescriptor server_;
  std::vector<std::string> lines_;
  std::thread thread_;
};

// The whole exchange of rank 0; returns the value.
std::string exchange(int descriptor, Deadline deadline = kTimeout) {
  PmiClient pmi(descriptor, deadline);
  pmi.put("key", "a=b,c");
  pmi.barrier();
  std::string value = pmi.get("key");
  pmi.finalize();
  return value;
}

Answers with(const std::string& command, const std::string& answer) {
  Answers answers = kAnswers;
  answers[command] = answer;
  return answers;
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
  for (const int descriptor : {file.get(), 1 << 20})
    EXPECT_THAT(error_text<Error>([&] { exchange(descriptor); }),
                HasSubstr("which PMI_FD names, is no connection to mpirun"));
}

// hydra would end the job when the connection ends, before the rank has told
// what went wrong.
TEST(PmiClient, KeepsTheConnectionWhereItFails) {
  FakeHydra hydra(with("barrier_in", ""));
  EXPECT_THROW(exchange(hydra.descriptor(), 50ms), Timeout);
  EXPECT_FALSE(hydra.has_lost_its_client());
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
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const FileDescriptor client(ends[0]);
  const FileDescriptor server(ends[1]);
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
