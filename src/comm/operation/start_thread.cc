#include "src/comm/operation/start_thread.h"

#include <fmt/format.h>

#include <atomic>
#include <system_error>

#include "src/base/log.h"

namespace lockstep {

std::thread try_start_thread(const std::string& group,
                             const std::function<void()>& body) try {
  return std::thread(body);
} catch (const std::system_error& failure) {
  warn_of_missing_thread(group, failure);
  return {};
}

void warn_of_missing_thread(const std::string& group,
                            const std::exception& failure) {
  static std::atomic_flag warned;
  log(warned.test_and_set() ? LogLevel::kDebug : LogLevel::kWarn,
      fmt::format("no thread for group \"{}\": {}; the operations of this "
                  "process's groups progress only while a thread waits for "
                  "them",
                  group, failure.what()));
}

}  // namespace lockstep
