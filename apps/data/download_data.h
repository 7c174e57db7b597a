// `lockstep data download`: executes lockstep-download, which fetches the files
// of a known dataset. The command itself does not load libcurl, which takes as
// long as all else at its start.
//
// Threads: the main thread.
// Errors:  InvalidArgument for a usage error, and when lockstep-download is
//          missing.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "src/base/settings.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

struct DownloadDataOptions {
  std::string dataset{};
  std::string from{};      // the address of a folder; "": the known one
  std::string data_dir{};  // "": where training looks without --data-dir
  int timeout_seconds = 30;
  bool force = false;  // replaces wrong files
};

struct DownloadDataRequest {
  DownloadDataOptions options{};
  std::vector<std::string> arguments{};  // as typed, for lockstep-download
};

void add_download_data_options(CLI::App& command, DownloadDataOptions& options);

// Call it after parsing.
void complete_download_data_options(DownloadDataOptions& options);

// Both, for lockstep-download.
DownloadDataOptions parse_download_data(std::span<const char* const> arguments);

// Becomes lockstep-download.
[[noreturn]] void run_download(const DownloadDataRequest& request,
                               const EnvironmentLookup& lookup);

}  // namespace lockstep
