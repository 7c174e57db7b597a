// Makes file permissions apply to a test that root runs.
//
// Threads: one object at a time: the user is the process's.
#pragma once

#include <unistd.h>

namespace lockstep {

// While it lives, this process runs as a user who owns no files, if it is root
// and may change its user.
class OtherUser {
 public:
  OtherUser() : works_(::geteuid() == 0 && ::seteuid(kNobody) == 0) {}
  ~OtherUser() {
    if (works_) (void)!::seteuid(0);
  }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

  bool works() const { return works_; }

 private:
  static constexpr uid_t kNobody = 65534;
  bool works_;
};

}  // namespace lockstep
