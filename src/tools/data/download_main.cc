// lockstep-download: what `lockstep data download` executes, with its
// arguments.
//
// Exit codes: 0 when all files are there, 2 for invalid arguments, 1 for all
// other errors.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <string>

#include "lockstep/base/error.h"
#include "src/base/exit_codes.h"
#include "src/base/process_environment.h"
#include "src/download/download.h"
#include "src/launch/output/terminal_style.h"
#include "src/tools/data/download_data.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string amount(double bytes) {
  return bytes < 1e6 ? fmt::format("{:.1f} kB", bytes / 1e3)
                     : fmt::format("{:.1f} MB", bytes / 1e6);
}

// A line per file; on a terminal its last line also moves.
class PrintedDownload final : public DownloadView {
 public:
  PrintedDownload()
      : moves_(terminal_style(STDOUT_FILENO, environment_variable).moving) {}

  void file_was_there(const fs::path& file) override {
    print(fmt::format("{}: already there", file.string()));
  }

  void file_grows(const fs::path& file, std::uint64_t bytes,
                  std::uint64_t total) override {
    constexpr std::chrono::milliseconds kBetween{100};
    const auto now = std::chrono::steady_clock::now();
    if (!moves_ || now < next_) return;
    next_ = now + kBetween;
    fmt::print("\r\033[K{}: {} of {}", file.filename().string(),
               amount(static_cast<double>(bytes)),
               amount(static_cast<double>(total)));
    std::fflush(stdout);
    is_drawn_ = true;
  }

  void file_is_complete(const fs::path& file, std::uint64_t arrived,
                        std::chrono::duration<double> duration) override {
    const auto bytes = static_cast<double>(arrived);
    print(fmt::format("{}: {}, {}/s", file.string(), amount(bytes),
                      amount(bytes / std::max(duration.count(), 1e-3))));
  }

  // Ends a line that still moves, for the message of an error.
  void clear() {
    if (is_drawn_) fmt::print("\r\033[K");
    is_drawn_ = false;
    std::fflush(stdout);
  }

 private:
  void print(const std::string& line) {
    clear();
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

  bool moves_;
  bool is_drawn_ = false;
  std::chrono::steady_clock::time_point next_{};
};

void run(std::span<const char* const> arguments) {
  const DownloadDataOptions options = parse_download_data(arguments);
  PrintedDownload view;
  try {
    download_dataset(
        {.dataset = options.dataset,
         .base = options.from,
         .folder = options.data_dir,
         .wrong = options.force ? WrongFiles::kReplace : WrongFiles::kRefuse,
         .timeout = std::chrono::seconds(options.timeout_seconds),
         .certificates = environment_variable("SSL_CERT_FILE").value_or("")},
        view);
  } catch (...) {
    view.clear();
    throw;
  }
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  const auto fail = [](const std::exception& error, int code) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return code;
  };
  const auto size = static_cast<std::size_t>(count);
  try {
    lockstep::run(std::span<const char* const>(arguments, size)
                      .subspan(size > 0 ? 1 : 0));
    return 0;
  } catch (const lockstep::InvalidArgument& error) {
    return fail(error, lockstep::kExitUsage);
  } catch (const std::exception& error) {
    return fail(error, lockstep::kExitFailed);
  }
}
