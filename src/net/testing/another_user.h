// While it lives, the thread that made it runs as user 65534 in a process of
// root. The kernel keeps a user id per thread; glibc's functions hide that. A
// test begins with LOCKSTEP_NEEDS_ROOT().
//
// Threads: destroy it in the thread that made it.
#pragma once

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOCKSTEP_NEEDS_ROOT() \
  if (::geteuid() != 0) GTEST_SKIP() << "only root may become another user"

namespace lockstep {

class AnotherUser {
 public:
  AnotherUser() { become(65534); }
  ~AnotherUser() { become(0); }
  AnotherUser(const AnotherUser&) = delete;
  AnotherUser& operator=(const AnotherUser&) = delete;

 private:
  static void become(unsigned user) {
    EXPECT_EQ(::syscall(SYS_setresuid, -1, user, -1), 0);
  }
};

}  // namespace lockstep
