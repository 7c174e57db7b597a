// Asks the ranks of a job for their records, while the launcher's loop goes on.
//
// Threads: one at a time; it has one of its own.
// Errors:  SystemError when that cannot be had. What goes wrong later means
//          only that fewer ranks have written.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/cancellation.h"
#include "lockstep/base/deadline.h"
#include "lockstep/net/wake_up.h"

namespace lockstep {

class RecordCollector {
 public:
  // Asks those of `ranks` that listen at the store `url`.
  RecordCollector(std::string url, std::string token, std::vector<int> ranks,
                  Deadline deadline);
  ~RecordCollector();
  RecordCollector(const RecordCollector&) = delete;
  RecordCollector& operator=(const RecordCollector&) = delete;

  // Readable once all have written, or the deadline has passed.
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
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace lockstep
