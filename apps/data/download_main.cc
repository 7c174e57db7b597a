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
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "apps/data/download_data.h"
#include "apps/download/download.h"
#include "src/base/main_function.h"
#include "src/base/name_table.h"
#include "src/base/printable.h"
#include "src/base/process_environment.h"
#include "src/base/report_text.h"
#include "src/launch/output/terminal_style.h"

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
    print(file, "already there");
  }

  void file_grows(const fs::path& file, std::uint64_t bytes,
                  std::uint64_t total) override {
    constexpr std::chrono::milliseconds kBetween{100};
    const auto now = std::chrono::steady_clock::now();
    if (!moves_ || now < next_) return;
    next_ = now + kBetween;
    const std::string line = fmt::format(
        "{}: {} of {}", file.filename().string(),
        amount(static_cast<double>(bytes)), amount(static_cast<double>(total)));
    const auto columns =
        static_cast<std::size_t>(std::max(terminal_columns(STDOUT_FILENO), 2));
    fmt::print("\r\033[K{}", line.substr(0, columns - 1));
    std::fflush(stdout);
    is_drawn_ = true;
  }

  void file_is_complete(const fs::path& file, std::uint64_t arrived,
                        std::chrono::duration<double> duration) override {
    const auto bytes = static_cast<double>(arrived);
    if (arrived == 0) return print(file, "complete");
    print(file, fmt::format("{}, {}/s", amount(bytes),
                            amount(bytes / std::max(duration.count(), 1e-3))));
  }

  // That of the program when all files are there.
  int exit_code() const { return exit_code_; }

  // Ends a line that still moves, for the message of an error.
  void clear() {
    if (is_drawn_) fmt::print("\r\033[K");
    is_drawn_ = false;
    std::fflush(stdout);
  }

 private:
  void print(const fs::path& file, std::string_view text) {
    clear();
    if (exit_code_ == 0)
      exit_code_ =
          print_report(fmt::format("{}: {}\n", printable(file.string()), text));
  }

  bool moves_;
  int exit_code_ = 0;
  bool is_drawn_ = false;
  std::chrono::steady_clock::time_point next_{};
};

int run(std::span<const char* const> arguments) {
  if (arguments.size() == 1 && std::string_view(arguments[0]) == "--help")
    return print_report(
        "lockstep data download executes this program with its arguments: see "
        "lockstep data download --help\n");
  const DownloadDataOptions options = parse_download_data(arguments);
  PrintedDownload view;
  try {
    download_dataset(
        {.known = row_named(kDownloads, "dataset", options.dataset),
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
  return view.exit_code();
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  return lockstep::run_main(count, arguments, lockstep::run);
}
