// Requests the records of a job's ranks while the launcher's loop continues.
//
// Threads: one thread at a time. A collector runs its own thread.
// Errors:  SystemError when the thread cannot be started. A later failure only
//          means that fewer ranks have written.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/net/wake_up.h"

namespace lockstep {

class RecordCollector {
 public:
  // Requests the records of those `ranks` that listen at the store `url`.
  RecordCollector(std::string url, std::string token, std::vector<int> ranks,
                  Deadline deadline);
  ~RecordCollector();
  RecordCollector(const RecordCollector&) = delete;
  RecordCollector& operator=(const RecordCollector&) = delete;

  // Readable once all ranks have written or the deadline has passed.
  int descriptor() const { return finished_.descriptor(); }

  // The ranks that have written. Waits until finished.
  const std::vector<int>& written();

 private:
  void run();

  const std::string url_;
  const std::string token_;
  const std::vector<int> ranks_;
  const Deadline deadline_;
  std::vector<int> written_;
  Cancellation cancelled_;
  WakeUp finished_;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace lockstep
