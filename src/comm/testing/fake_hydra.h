// hydra's side of PMI-1, as its answers to one process of a job.
//
// Threads: one thread at a time per object.
// Errors:  a test's failures.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/testing/test_timeout.h"
#include "src/net/file_descriptor.h"
#include "src/net/unix_socket.h"
#include "src/net/wait.h"

namespace lockstep {

using Answers = std::map<std::string, std::string>;

// hydra's answers to one process, by command.
inline const Answers kAnswers{
    {"init", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"},
    {"get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n"},
    {"get_my_kvsname", "cmd=my_kvsname kvsname=kvs_71_0\n"},
    {"put", "cmd=put_result rc=0 msg=success\n"},
    {"barrier_in", "cmd=barrier_out\n"},
    {"get", "cmd=get_result rc=0 msg=success value=a=b,c\n"},
    {"finalize", "cmd=finalize_ack\n"}};

// The two ends of a connection, made by another process, as by hydra.
inline std::vector<FileDescriptor> make_pair_in_another_process() {
  std::array<int, 2> way{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, way.data()),
            0);
  UnixConnection here{FileDescriptor(way[0])};
  UnixConnection there{FileDescriptor(way[1])};
  const pid_t other = ::fork();
  if (other == 0) {
    std::array<int, 2> ends{};
    ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data());
    there.send(std::as_bytes(std::span("ends")), ends, kTimeout);
    ::_exit(0);
  }
  std::vector<FileDescriptor> ends =
      std::move(here.receive(kTimeout).descriptors);
  EXPECT_EQ(::waitpid(other, nullptr, 0), other);
  return ends;
}

// hydra's side of a connection. It closes the connection instead of an answer
// that it does not have, and is silent where the answer is empty.
class FakeHydra {
 public:
  explicit FakeHydra(Answers answers = kAnswers)
      : answers_(std::move(answers)) {
    std::vector<FileDescriptor> ends = make_pair_in_another_process();
    client_ = std::move(ends.at(0));
    server_ = std::move(ends.at(1));
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeHydra() {
    ::shutdown(server_.get(), SHUT_RDWR);
    thread_.join();
  }

  bool has_lost_its_client() const {
    return wait_for(server_.get(), POLLRDHUP, std::chrono::seconds(0)) ==
           WaitResult::kReady;
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

// Their answers, but for `command`.
inline Answers with(const std::string& command, const std::string& answer) {
  Answers answers = kAnswers;
  answers[command] = answer;
  return answers;
}

}  // namespace lockstep
