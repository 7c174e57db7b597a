// Rebuilds a trained model from its file alone: a file of `lockstep train`, a
// checkpoint of a run, or PyTorch's file of one of our models.
//
//     const auto saved = lockstep::read_saved_model("m.safetensors", *group);
//     const auto model = lockstep::rebuild_model(saved, dataset);
//
// The file's texts name the model and the dataset it was trained on; its
// tensors determine the number of classes and the hidden layers. Files of other
// programs have no such texts: the caller then sets `name`.
//
// Threads: read_saved_model() with a group is a collective.
// Errors:  InvalidArgument naming the file, the difference and what to do; see
//          also lockstep/checkpoint/checkpoint.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/image_dataset.h"

namespace lockstep {

// One of `lockstep train`'s models: an image classifier.
class Classifier : public torch::nn::Module {
 public:
  // Images (samples x channels x height x width, float32) to logits
  // (samples x classes).
  virtual at::Tensor forward(const at::Tensor& images) = 0;
};

struct SavedModel {
  std::string file;          // for errors
  std::string name;          // as --model takes it; empty if unknown
  std::string name_in_file;  // empty if the file has none
  std::string dataset;  // the title of the one that it was trained on; empty:
                        // not known
  std::string images;   // as in_words() returns it; empty if unknown
  std::vector<std::string> class_names{};       // empty if unknown
  std::map<std::string, at::Tensor> tensors{};  // parameters and buffers
};

// Reads the file at `path`; from a folder of checkpoints the newest.
SavedModel read_saved_model(const std::filesystem::path& path);

// The same on rank 0, which sends the tensors to all ranks: they need no common
// file system. When rank 0 fails, every rank throws.
SavedModel read_saved_model(const std::filesystem::path& path,
                            ProcessGroup& group);

// The model, with the file's weights, for the images and classes of `dataset`.
// Weights fit as they do for load_checkpoint().
std::shared_ptr<Classifier> rebuild_model(const SavedModel& saved,
                                          const ImageDataset& dataset);

// Copies the file's weights and buffers over those of `model`, as the start of
// training. The first and the last layer with parameters keep their own where
// the file's are missing or have another shape, because they are for other
// images or other classes; returns their names. InvalidArgument, without any
// change, when any other layer differs, and when no layer fits.
std::vector<std::string> take_weights(const SavedModel& saved,
                                      const Classifier& model);

// The metadata that a file of save_checkpoint() needs for the functions above.
std::map<std::string, std::string> model_metadata(
    std::string_view name, const ImageDataset& trained_on);

// The names of the classes as a JSON array, with U+FFFD in the place of bytes
// that are not UTF-8.
std::string class_names_text(const ImageDataset& dataset);

// The size of the images: "1 x 28 x 28", of channels, height and width.
std::string in_words(const ImageDataset& dataset);

}  // namespace lockstep
