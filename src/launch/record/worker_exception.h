// The exception that ended a worker, as it recorded it for torchrun: the file
// that TORCHELASTIC_ERROR_FILE names, which PyTorch's @record writes.
//
// Threads: any thread.
// Errors:  none; a file that is not such a record holds no exception.
// Source:  torch/distributed/elastic/multiprocessing/errors/error_handler.py.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep {

struct WorkerException {
  std::string message;         // "ValueError: no batch"; may have several lines
  std::string traceback = {};  // its end; empty: none was recorded
};

// The program writes the file, so it may hold anything: of a file larger than 1
// MiB nothing is read, and no pipe or device is opened.
std::optional<WorkerException> read_worker_exception(
    const std::filesystem::path& file);

}  // namespace lockstep
