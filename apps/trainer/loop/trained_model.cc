#include "apps/trainer/loop/trained_model.h"

#include "apps/trainer/model/resnet.h"
#include "apps/trainer/model/saved_model.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "src/base/version.h"

namespace lockstep {

std::optional<std::string> stem_name(const TrainerOptions& options,
                                     const TrainingData& data) {
  if (!known_model(options.model).residual) return std::nullopt;
  const auto [channels, height, width] = data.train->shape();
  return std::string(
      name_of(kStems, chosen_stem(parse_stem(options.stem), height, width)));
}

void save_trained_model(const TrainerOptions& options, const TrainingData& data,
                        const Classifier& model,
                        std::optional<double> test_accuracy) {
  std::map<std::string, std::string> texts{
      {"format", "pt"},
      {"lockstep.version", std::string(version())},
      {"lockstep.epochs", std::to_string(options.epochs)}};
  if (test_accuracy)
    texts["lockstep.test_accuracy"] = std::to_string(*test_accuracy);
  if (const auto stem = stem_name(options, data))
    texts["lockstep.stem"] = *stem;
  texts.merge(model_metadata(options.model, data.facts));
  save_checkpoint(options.output, model, texts);
}

}  // namespace lockstep
