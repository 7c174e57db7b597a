// A file of scalars that TensorBoard plots over the steps of a run.
//
// The format is TensorFlow's: records, each with its length and masked CRC-32C
// checksums, around protocol buffers of type Event (docs/formats/metrics.md).
//
// When a method returns, other processes see the record, and it survives a
// kill; a crash of the machine may lose it.
//
// Threads: an object belongs to one thread at a time.
// Errors:  SystemError naming the file and the reason; InvalidArgument for a
//          tag that is empty or not UTF-8. A record that cannot be written
//          leaves the file as it was.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>

#include "lockstep/comm/run_files.h"

namespace lockstep {

// A point of the curve that TensorBoard calls `tag`: "train/loss" is the curve
// loss of the section train.
struct Scalar {
  std::string tag;
  double value = 0;  // stored as float32
};

class EventFile {
 public:
  // Creates a new file in `folder`, which must exist, under a unique name that
  // TensorBoard recognises, and which it reads after those that are there, up
  // to the year 2286: events.out.tfevents.SECONDS.HOST.PID.NUMBER.
  explicit EventFile(const std::filesystem::path& folder);

  // Marks the beginning or the resumption of a run that has made `step` steps:
  // TensorBoard keeps the points of earlier files in the folder up to this
  // step, and discards those of later steps, which the run makes again. A new
  // run whose first point has step 0 passes -1.
  void begin_at(std::int64_t step);

  // Adds one point to each curve, at this step and the present time. The file
  // has them when this returns.
  void add(std::int64_t step, std::span<const Scalar> scalars);
  // add(step, {{"train/loss", loss}, {"train/gradient_norm", norm}})
  void add(std::int64_t step, std::initializer_list<Scalar> scalars) {
    add(step, std::span(scalars.begin(), scalars.size()));
  }

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendedFile file_;
};

}  // namespace lockstep
