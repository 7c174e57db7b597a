// The test images of a run: a look at their files before it trains, since a
// broken one would end the run only when it measures for the first time, and
// the measurements.
//
// Threads: collectives: every rank of the group calls them at the same point of
//          the program.
// Errors:  InvalidArgument, on the other ranks Error that quotes it or
//          PeerFailure, where more images are broken on a rank than
//          `max_broken` of the options; those of collectives.
#pragma once

#include <cstdint>

#include "apps/trainer/loop/strategies.h"
#include "apps/trainer/loop/trainer.h"
#include "lockstep/torch/device_batches.h"
#include "src/evaluate/broken_images.h"
#include "src/evaluate/metrics.h"
#include "src/evaluate/readable_samples.h"

namespace lockstep {

// Each rank looks at its share of the files: at the header in the first 64 KiB,
// and for the end of the image in the last. It decodes a file only if these do
// not look whole, as a JPEG whose header is longer; damage between the two is
// found by a measurement.
// Does nothing for images in memory.
void check_test_images(const TrainerOptions& options, const TrainingData& data,
                       ProcessGroup& group);

class TestImages {
 public:
  // The arguments must outlive the object.
  TestImages(const TrainerOptions& options, const SampleSource& images,
             const TrainedReplica& replica);

  // Evaluates the model as it will be saved: with rank 0's running statistics,
  // since each rank has gathered its own, and in float32, whatever training
  // computes in. Leaves broken images out.
  Metrics evaluate();

  // Those that this rank has left out.
  BrokenImages broken() const;

 private:
  const TrainerOptions& options_;
  ReadableSamples samples_;
  const TrainedReplica& replica_;
  DeviceBatches batches_;
};

}  // namespace lockstep
