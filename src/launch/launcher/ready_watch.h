// Waits until a worker of a job that re-forms in place says that it is ready,
// while the launcher's loop continues.
//
// Threads: one thread at a time. A watch runs its own thread.
// Errors:  SystemError when the thread cannot be started. A store that cannot
//          be reached, as after the end of its server, means: never ready.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "lockstep/base/deadline.h"
#include "src/net/wake_up.h"

namespace lockstep {

class ReadyWatch {
 public:
  // Waits for worker `id` at the job's store `url`, as long as it takes.
  ReadyWatch(std::string url, std::string token, int id);
  ~ReadyWatch();
  ReadyWatch(const ReadyWatch&) = delete;
  ReadyWatch& operator=(const ReadyWatch&) = delete;

  // Readable once the worker is ready.
  int descriptor() const { return ready_.descriptor(); }

 private:
  void run();

  const std::string url_;
  const std::string token_;
  const int id_;
  Cancellation cancelled_;
  WakeUp ready_;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace lockstep
