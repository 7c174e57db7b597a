// Hand-made progress records of a training run's rank 0.
#pragma once

#include "src/base/progress_record.h"

namespace lockstep {

inline const StartRecord kStart{.version = "0.1.0",
                                .ranks = 2,
                                .backend = "shm",
                                .libtorch_version = "2.13.0",
                                .dataset = "Fashion-MNIST",
                                .train_images = 60'000,
                                .test_images = 10'000,
                                .model = "convnet",
                                .parameters = 421'642,
                                .global_batch = 128,
                                .batch_per_rank = 64};
inline const StepRecord kStep{.epoch = 3,
                              .epochs = 5,
                              .step = 312,
                              .steps = 469,
                              .loss = 0.287,
                              .images_per_second = 9870,
                              .seconds_left = 1.25};
inline const EpochRecord kEpoch{.epoch = 1,
                                .epochs = 5,
                                .train_loss = 0.5312,
                                .train_accuracy = 0.809,
                                .test_accuracy = 0.867,
                                .images_per_second = 9612,
                                .seconds = 6.2};

}  // namespace lockstep
