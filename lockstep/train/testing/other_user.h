// Lets a test that root runs meet what modes of files forbid.
//
// Threads: the user is the process's; one at a time.
#pragma once

#include <unistd.h>

namespace lockstep {

// As long as it lives this process is a user who owns nothing, if root may be
// that here.
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
