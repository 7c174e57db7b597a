// The file of a trained model: its tensors and the texts that are needed to use
// them, but nothing that differs between equal runs: equal runs give equal
// files. See docs/formats/checkpoint.md.
//
// Threads: one rank alone calls it.
// Errors:  those of save_checkpoint() (lockstep/checkpoint/checkpoint.h).
#pragma once

#include <optional>
#include <string>

#include "apps/trainer/loop/trainer.h"

namespace lockstep {

// Replaces the file `options.output`; `test_accuracy` is not known before the
// last evaluation.
void save_trained_model(const TrainerOptions& options, const TrainingData& data,
                        const Classifier& model,
                        std::optional<double> test_accuracy);

// The stem of a residual network for these images, by its name in kStems;
// nothing for other models.
std::optional<std::string> stem_name(const TrainerOptions& options,
                                     const TrainingData& data);

}  // namespace lockstep
