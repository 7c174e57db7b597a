#include "src/net/epoll.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "src/base/testing/test_timeout.h"
#include "src/net/pipe.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(Epoll, ReportsOnlyDescriptorsThatAreReady) {
  Epoll epoll;
  std::vector<Pipe> pipes;
  for (int i = 0; i < 300; ++i) pipes.push_back(make_pipe());
  for (std::size_t i = 0; i < pipes.size(); ++i)
    epoll.add(pipes[i].read.get(), EPOLLIN, i);
  EXPECT_TRUE(epoll.wait(Deadline(0ms)).empty());
  ASSERT_EQ(::write(pipes[277].write.get(), "x", 1), 1);
  const auto ready = epoll.wait(kTimeout);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].tag, 277u);
  EXPECT_EQ(ready[0].events, std::uint32_t{EPOLLIN});
}

TEST(Epoll, ReportsTheEventsOfTheLastChange) {
  Epoll epoll;
  Pipe pipe = make_pipe();
  epoll.add(pipe.write.get(), 0, 1);
  EXPECT_TRUE(epoll.wait(Deadline(0ms)).empty());
  epoll.change(pipe.write.get(), EPOLLOUT, 2);
  const auto ready = epoll.wait(kTimeout);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].tag, 2u);
}

TEST(Epoll, ForgetsARemovedDescriptorOfWhichACopyLives) {
  Epoll epoll;
  Pipe pipe = make_pipe();
  const FileDescriptor copy(::dup(pipe.read.get()));
  epoll.add(pipe.read.get(), EPOLLIN, 1);
  epoll.remove(pipe.read.get());
  epoll.remove(pipe.read.get());
  pipe.read.reset();
  ASSERT_EQ(::write(pipe.write.get(), "x", 1), 1);
  EXPECT_TRUE(epoll.wait(Deadline(0ms)).empty());
}

}  // namespace
}  // namespace lockstep
