#include "src/comm/wire/start_thread.h"

#include <fmt/format.h>

#include <system_error>

#include "src/base/log.h"

namespace lockstep {

std::thread try_start_thread(const std::string& group,
                             const std::function<void()>& body) try {
  return std::thread(body);
} catch (const std::system_error& failure) {
  log(LogLevel::kWarn,
      fmt::format("no thread for group \"{}\": {}; its operations progress "
                  "only while a thread waits for them",
                  group, failure.what()));
  return {};
}

}  // namespace lockstep
