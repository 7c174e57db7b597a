// Waits until one of some keys of the job's store is set, while the launcher's
// loop continues.
//
// Threads: one thread at a time. A watch runs its own thread.
// Errors:  SystemError when the thread cannot be started. A store that cannot
//          be reached is tried again, so after the end of its server no key is
//          ever set.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/net/wake_up.h"

namespace lockstep {

class KeyWatch {
 public:
  // Waits at the job's store `url`, as long as it takes.
  KeyWatch(std::string url, std::string token, std::vector<std::string> keys);
  ~KeyWatch();
  KeyWatch(const KeyWatch&) = delete;
  KeyWatch& operator=(const KeyWatch&) = delete;

  // Readable once one of the keys is set.
  int descriptor() const { return set_.descriptor(); }

 private:
  void run();

  const std::string url_;
  const std::string token_;
  const std::vector<std::string> keys_;
  Cancellation cancelled_;
  WakeUp set_;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace lockstep
