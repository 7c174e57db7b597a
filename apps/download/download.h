// Downloads the files of a known dataset to where training finds them.
//
// Each file is written as NAME.part, checked, and only then named NAME. A
// stopped download goes on where it ended. Right files that are already there
// are kept, and wrong ones are not replaced unless the caller says so.
//
// Threads: one thread at a time per folder; a second process gets an error.
// Errors:  InvalidArgument for a malformed address; Error for a file whose
// checksum is wrong; those of transfer.h,
//          partial_file.h, present_files.h and unpack.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "apps/download/known_downloads.h"
#include "apps/download/present_files.h"

namespace lockstep {

struct DownloadOptions {
  KnownDownload known{};
  std::string base{};  // "": the known address
  std::filesystem::path folder{};
  WrongFiles wrong = WrongFiles::kRefuse;
  std::chrono::seconds timeout{30};  // see FileTransfer
  std::string certificates{};        // see FileTransfer
};

// What a caller shows of a download.
class DownloadView {
 public:
  virtual ~DownloadView() = default;

  virtual void file_was_there(const std::filesystem::path& file) = 0;
  // Several times per file: `bytes` of `total` are there.
  virtual void file_grows(const std::filesystem::path& file,
                          std::uint64_t bytes, std::uint64_t total) = 0;
  // `file`, or a folder for an archive that was unpacked, is in its place;
  // `arrived` bytes came now, in `duration`.
  virtual void file_is_complete(const std::filesystem::path& file,
                                std::uint64_t arrived,
                                std::chrono::duration<double> duration) = 0;
};

void download_dataset(const DownloadOptions& options, DownloadView& view);

}  // namespace lockstep
