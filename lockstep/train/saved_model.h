// A trained model, rebuilt from its file alone: what `lockstep train` saved, a
// checkpoint of a run, or PyTorch's file of one of our models.
//
//     const auto saved = lockstep::read_saved_model("m.safetensors", *group);
//     const auto model = lockstep::rebuild_model(saved, dataset);
//
// The file's texts say which model it is and what it was trained on; its
// tensors say how many classes and which hidden layers it has. Files of other
// programs have no such texts: the caller sets `name` then.
//
// Threads: functions of their arguments; read_saved_model() is a collective.
// Errors:  InvalidArgument naming the file, what does not fit and what to do;
//          see also train/tensor_archive.h.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/train/models.h"
#include "lockstep/train/tensor_archive.h"

namespace lockstep {

struct SavedModel {
  std::string file;     // for errors
  std::string name;     // as make_model() takes it; empty: not known
  std::string dataset;  // the title of the one that it was trained on; empty:
                        // not known
  std::string images;   // as in_words() has them; empty: not known
  NamedTensors tensors{};  // parameters and buffers
};

// Reads the bytes of a whole file. `file` names it in errors. The tensors share
// `bytes`.
SavedModel parse_saved_model(const SharedBytes& bytes, const std::string& file);

// The same from `path` on rank 0, which gives all ranks its bytes: they need no
// common file system. Of a folder of checkpoints the newest is read. Every rank
// learns of an error: see train/rank_zero.h.
SavedModel read_saved_model(const std::filesystem::path& path,
                            ProcessGroup& group);

// The model, with the file's weights, for the images and classes of `dataset`.
std::shared_ptr<Classifier> rebuild_model(const SavedModel& saved,
                                          const ImageDataset& dataset);

// Copies the file's weights, and buffers, over those of `model`, to begin
// training with. The first and the last layer with parameters keep what they
// have where the file's are not there or of another shape, because they are for
// other images or other classes: returns their names. InvalidArgument, and
// nothing has changed, when anything else differs, and when nothing fits.
std::vector<std::string> take_weights(const SavedModel& saved,
                                      const Classifier& model);

// What a file must say besides the tensors, for the functions above.
SafetensorsMetadata model_metadata(std::string_view name,
                                   const ImageDataset& trained_on);

// The size of the images: "1 x 28 x 28", of channels, height and width.
std::string in_words(const ImageDataset& dataset);

}  // namespace lockstep
