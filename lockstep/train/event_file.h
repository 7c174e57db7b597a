// A file of scalars that TensorBoard draws over the steps of a run.
//
// The format is TensorFlow's: records, each with its length and masked CRC-32C
// checksums, around protocol buffers of type Event (docs/formats/metrics.md).
//
// Threads: as AppendedFile, one at a time.
// Errors:  SystemError naming the file and the reason; a record that cannot be
//          written leaves the file as it was.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/train/appended_file.h"

namespace lockstep {

// A point of the curve that TensorBoard calls `tag`: "train/loss" is the curve
// loss of the section train.
struct Scalar {
  std::string tag;
  double value = 0;  // the file has it as float32
};

// `data` as a record: what TensorFlow calls the TFRecord format.
std::string framed_record(std::string_view data);

class EventFile {
 public:
  // Makes a new file in `folder`, which must exist, under the name by which
  // TensorBoard knows such files and that no other has:
  // events.out.tfevents.SECONDS.HOST.PID.NUMBER.
  explicit EventFile(const std::filesystem::path& folder);

  // Says that a run begins, or goes on: TensorBoard forgets what earlier files
  // of the folder say of this step and all after it.
  void begin_at(std::int64_t step);

  // One point of each curve, at this step and the present time. The file has
  // them when this returns.
  void add(std::int64_t step, std::span<const Scalar> scalars);

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendedFile file_;
};

}  // namespace lockstep
