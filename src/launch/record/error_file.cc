#include "src/launch/record/error_file.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/replacing_file.h"
#include "src/base/text_file.h"

namespace lockstep {

ErrorFile::ErrorFile(std::string path) : path_(std::move(path)) {
  check_replaceable(path_);
  const std::filesystem::path file = file_behind(path_);
  earlier_ = FileDescriptor(::open(file.c_str(), O_PATH | O_CLOEXEC));
  std::error_code error;
  std::filesystem::remove(file, error);
  if (error) throw SystemError("cannot remove " + path_, error.value());
}

void ErrorFile::write(const WorkerFailure& failure, int restarts,
                      const std::string& host) const {
  const ExitStatus& status = failure.status;
  nlohmann::ordered_json report;
  report["format"] = "lockstep-error";
  report["version"] = 1;
  report["time"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                               fmt::gmtime(std::chrono::system_clock::to_time_t(
                                   std::chrono::system_clock::now())));
  report["message"] = summary_of(failure);
  report["rank"] = failure.rank;
  report["workers"] = failure.workers;
  report["host"] = host;
  report["pid"] = failure.pid;
  report["program"] = failure.program;
  report["exit_code"] = status.exit_code();
  report["signal"] = status.signal == 0
                         ? std::string()
                         : fmt::format("SIG{}", ::sigabbrev_np(status.signal));
  report["seconds"] = failure.seconds;
  report["restarts"] = restarts;
  report["likely"] = likely_cause(failure);
  report["exception"] = nullptr;
  if (failure.exception)
    report["exception"] = {{"message", failure.exception->message},
                           {"traceback", failure.exception->traceback}};
  report["output"] = failure.last_lines;
  report["log"] = failure.log_path;
  report["records"] = failure.record_folder;
  replace_text_file(
      path_,
      report.dump(1, ' ', false,
                  nlohmann::ordered_json::error_handler_t::replace) +
          "\n",
      fmt::format("/proc/self/fd/{}", earlier_.get()));
}

}  // namespace lockstep
