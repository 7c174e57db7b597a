// The progress that a training program reports to its launcher. Rank 0 writes
// one JSON record per line to the descriptor that LOCKSTEP_PROGRESS_FD names.
// docs/formats/progress.md describes the lines.
//
// The order is: one StartRecord, then StepRecords as often as seems useful, an
// EpochRecord at the end of each epoch, one EndRecord. A launcher draws the
// records that arrive and requires none.
//
// Threads: write_progress() calls must not overlap on one descriptor.
// Errors:  InvalidArgument for a malformed line, SystemError when a record
//          cannot be written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lockstep {

// The job, as known before the first step.
struct StartRecord {
  std::string version;           // of Lockstep
  int ranks = 1;                 // the world size
  int hosts = 1;                 // on which they run
  std::string backend;           // the name of the group's backend
  std::string libtorch_version;  // may be empty
  std::string dataset;           // its title: Fashion-MNIST
  std::int64_t train_images = 0;
  std::int64_t test_images = 0;
  std::string model;
  std::int64_t parameters = 0;  // scalars that are trained
  std::int64_t global_batch = 0;
  std::int64_t batch_per_rank = 0;
  std::vector<std::string> notes{};  // about the run, one line each

  friend bool operator==(const StartRecord&, const StartRecord&) = default;
};

// The state of training. `step` counts the finished steps of this epoch, so it
// ends at `steps`; epochs count from 1.
struct StepRecord {
  int epoch = 1;
  int epochs = 1;
  std::int64_t step = 0;
  std::int64_t steps = 0;
  double loss = 0;               // NaN when training has diverged
  double images_per_second = 0;  // summed over all ranks
  double seconds_left = 0;       // until the end of this epoch

  friend bool operator==(const StepRecord&, const StepRecord&) = default;
};

// The result of an epoch, over all ranks. Accuracies are fractions, 0 … 1.
struct EpochRecord {
  int epoch = 1;
  int epochs = 1;
  double train_loss = 0;
  double train_accuracy = 0;
  std::optional<double> test_accuracy;  // nothing: not evaluated
  // Of the training part, without evaluation; nothing: all steps were made
  // before the run was resumed.
  std::optional<double> images_per_second{};
  std::optional<double> seconds{};

  friend bool operator==(const EpochRecord&, const EpochRecord&) = default;
};

// The end of a successful job. A failed job writes no EndRecord.
struct EndRecord {
  std::string model_path;  // where the trained model was saved; may be empty
  std::optional<double> test_accuracy;
  double seconds = 0;              // of the whole job
  std::vector<std::string> notes;  // about the run, one line each
  std::vector<std::string> hints;  // commands to try next, one line each

  friend bool operator==(const EndRecord&, const EndRecord&) = default;
};

using ProgressRecord =
    std::variant<StartRecord, StepRecord, EpochRecord, EndRecord>;

// The longest line, including its newline.
inline constexpr std::size_t kMaxProgressLineBytes = 64 * 1024;

// The record's line, including its newline. Bytes that are not UTF-8 are
// replaced; numbers that are not finite become null.
std::string encode_progress(const ProgressRecord& record);

// Parses `line` (with or without its newline). Returns nothing for a record
// type that this version does not know. Null numbers become NaN; unknown fields
// are ignored.
std::optional<ProgressRecord> decode_progress(std::string_view line);

// Writes the record's line to `descriptor`; waits while its pipe is full.
void write_progress(int descriptor, const ProgressRecord& record);

}  // namespace lockstep
