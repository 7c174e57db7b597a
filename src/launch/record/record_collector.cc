#include "src/launch/record/record_collector.h"

#include <utility>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/store/record_request.h"

namespace lockstep {

RecordCollector::RecordCollector(std::string url, std::string token,
                                 std::vector<int> ranks, Deadline deadline)
    : url_(std::move(url)),
      token_(std::move(token)),
      ranks_(std::move(ranks)),
      deadline_(deadline),
      thread_([this] { run(); }) {}

RecordCollector::~RecordCollector() {
  cancelled_.cancel();
  if (thread_.joinable()) thread_.join();
}

const std::vector<int>& RecordCollector::written() {
  if (thread_.joinable()) thread_.join();
  return written_;
}

void RecordCollector::run() {
  try {
    const auto store =
        open_store(url_, {.token = token_, .deadline = deadline_});
    written_ = request_records(*store, ranks_, deadline_, &cancelled_);
  } catch (const std::exception& error) {
    log(LogLevel::kDebug, error.what());
  }
  finished_.signal();
}

}  // namespace lockstep
