#include "apps/trainer/model/saved_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "apps/trainer/model/models.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/data/image_dataset.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/checkpoint/checkpoint_seal.h"
#include "src/checkpoint/named_tensors.h"
#include "src/checkpoint/tensor_archive.h"
#include "src/comm/testing/run_ranks.h"
#include "src/evaluate/testing/striped_images.h"
#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class ModelInAFile : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  static std::shared_ptr<Classifier> model() {
    return make_model("mlp", {.hidden = {32}, .dropout = 0.5});
  }
  SavedModel read() const { return read_saved_model(file()); }
  std::string file() const { return folder_ / "m.safetensors"; }
  std::string refusal_of(const SavedModel& saved,
                         const ImageDataset& dataset) const {
    return error_text([&] { rebuild_model(saved, dataset); });
  }

  TestDirectory folder_;
  ImageDataset dataset_ = striped_images(8, 2);
};

TEST_F(ModelInAFile, ComesBackWithoutBeingDescribedAgain) {
  const at::Tensor images = at::rand({2, 1, 28, 28});
  for (const char* name : {"convnet", "cnn", "mlp", "resnet18", "resnet34"}) {
    // A stem that the size of the images would not give.
    const Stem stem =
        std::string_view(name) == "resnet34" ? Stem::kImageNet : Stem::kAuto;
    const ModelOptions options{.hidden = {12, 7, 5}, .stem = stem, .seed = 3};
    const auto saved = make_model(name, options);
    for (auto& buffer : saved->buffers())
      if (buffer.is_floating_point()) buffer.uniform_(0.5, 1);
    save_checkpoint(file(), *saved, model_metadata(name, dataset_));
    run_ranks("shm", 2, [&](const std::shared_ptr<ProcessGroup>& group) {
      const SavedModel found = read_saved_model(file(), *group);
      EXPECT_EQ(found.file, file());
      EXPECT_EQ(found.name, name);
      EXPECT_EQ(found.dataset, "Stripes");
      EXPECT_EQ(found.images, "1 x 28 x 28");
      const auto model = rebuild_model(found, dataset_);
      const at::NoGradGuard no_grad;
      model->eval();
      // Two threads must not use one model.
      const auto expected = make_model(name, options);
      load_checkpoint(file(), *expected);
      expected->eval();
      EXPECT_TRUE(at::equal(model->forward(images), expected->forward(images)))
          << name;
    });
  }
}

TEST_F(ModelInAFile, OfAnotherProgramIsNamedByTheCaller) {
  save_checkpoint(file(), *model());
  SavedModel saved = read();
  EXPECT_THAT(refusal_of(saved, dataset_),
              AllOf(HasSubstr(file()), HasSubstr("\n  next:    name the model "
                                                 "with --model")));
  saved.name = "mlp";
  EXPECT_NO_THROW(rebuild_model(saved, dataset_));
}

TEST_F(ModelInAFile, MayHaveItsWeightsInHalfPrecision) {
  TensorArchive half{tensors_of(*model()), model_metadata("mlp", dataset_)};
  for (auto& [name, tensor] : half.tensors) tensor = tensor.to(at::kHalf);
  write_archive(file(), half);
  const auto found = tensors_of(*rebuild_model(read(), dataset_));
  const auto ours = make_model("mlp", {.hidden = {32}, .seed = 4});
  take_weights(read(), *ours);
  for (const auto& [name, tensor] : half.tensors) {
    EXPECT_TRUE(found.at(name).equal(tensor.to(at::kFloat))) << name;
    EXPECT_TRUE(tensors_of(*ours).at(name).equal(found.at(name))) << name;
  }
}

TEST_F(ModelInAFile, OfAnotherDataSetIsRefused) {
  save_checkpoint(file(), *model(), model_metadata("mlp", dataset_));
  ImageDataset other = dataset_;
  other.title = "Other";
  other.class_names.pop_back();
  EXPECT_THAT(refusal_of(read(), other),
              AllOf(HasSubstr("tells 10 classes apart, but Other has 9"),
                    HasSubstr("trained on Stripes: name that with --dataset")));
  EXPECT_THAT(refusal_of(read(), striped_images(1, 1, 32)),
              AllOf(HasSubstr("takes images of 1 x 28 x 28, but those of "
                              "Stripes are 1 x 32 x 32"),
                    HasSubstr("--data-dir")));
}

TEST_F(ModelInAFile, ThatIsNotTheOneNamedIsRefusedWithTheFirstDifferences) {
  save_checkpoint(file(), *model(), model_metadata("mlp", dataset_));
  SavedModel saved = read();
  saved.name = "cnn";
  EXPECT_THAT(refusal_of(saved, dataset_),
              AllOf(HasSubstr("is not a cnn for images of 1 x 28 x 28:\n"),
                    HasSubstr("\"conv1.weight\" is missing from the file"),
                    HasSubstr("\n  next:    name another model than cnn")));
  saved.name = "resnet18";
  EXPECT_THAT(refusal_of(saved, dataset_),
              ContainsRegex("(\n  \"[^\n]*){6}\n  and 1[0-9]+ more\n  next:"));
  saved.name = "cmm";
  EXPECT_THAT(refusal_of(saved, dataset_),
              HasSubstr("unknown model \"cmm\": did you mean \"cnn\"?"));
}

// Like torchvision's: 1,000 classes of larger colour images.
TEST_F(ModelInAFile, GivesItsWeightsToAModelOfOtherImagesAndClasses) {
  const auto theirs = make_model(
      "resnet18",
      {.channels = 3, .height = 64, .width = 64, .classes = 1000, .seed = 3});
  save_checkpoint(file(), *theirs);
  const auto ours = make_model("resnet18", {.seed = 4});
  const auto before = make_model("resnet18", {.seed = 4});
  EXPECT_THAT(take_weights(read(), *ours),
              ::testing::ElementsAre("conv1", "fc"));
  const NamedTensors found = tensors_of(*ours), first = tensors_of(*before),
                     stored = tensors_of(*theirs);
  for (const auto& [name, tensor] : found) {
    const bool kept = name.starts_with("conv1.") || name.starts_with("fc.");
    EXPECT_TRUE(tensor.equal((kept ? first : stored).at(name))) << name;
  }
}

TEST_F(ModelInAFile, GivesAllItsWeightsToOneOfTheSameShapes) {
  save_checkpoint(file(), *make_model("cnn", {.seed = 3}));
  const auto ours = make_model("cnn", {.seed = 4});
  EXPECT_THAT(take_weights(read(), *ours), ::testing::IsEmpty());
  for (const auto& [name, tensor] : read().tensors)
    EXPECT_TRUE(tensors_of(*ours).at(name).equal(tensor)) << name;
}

TEST_F(ModelInAFile, GivesNoWeightsToAnotherModel) {
  save_checkpoint(file(), *make_model("mlp", {.hidden = {12, 7, 5}}));
  const auto ours = make_model("mlp", {.hidden = {12, 8, 5}, .seed = 4});
  EXPECT_THAT(error_text([&] { take_weights(read(), *ours); }),
              AllOf(HasSubstr("does not fit the model to train:\n"),
                    HasSubstr("fc2.weight"), HasSubstr("--hidden")));
  const auto as_made = make_model("mlp", {.hidden = {12, 8, 5}, .seed = 4});
  for (const auto& [name, tensor] : tensors_of(*as_made))
    EXPECT_TRUE(tensors_of(*ours).at(name).equal(tensor)) << name;
}

// How often a file is opened while `act` runs.
template <class Act>
int count_opens(const std::filesystem::path& file, Act act) {
  const FileDescriptor events(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  // With the closes between them, since the kernel merges equal events. Those
  // of a watched file have no name after them.
  EXPECT_GE(::inotify_add_watch(events.get(), file.c_str(),
                                IN_OPEN | IN_CLOSE_NOWRITE),
            0);
  act();
  std::array<inotify_event, 64> read{};
  const ssize_t bytes = ::read(events.get(), read.data(), sizeof read);
  EXPECT_GT(bytes, 0);
  if (bytes <= 0) return 0;
  const auto count = static_cast<std::size_t>(bytes) / sizeof read[0];
  return static_cast<int>(std::count_if(
      read.begin(), read.begin() + static_cast<std::ptrdiff_t>(count),
      [](const inotify_event& event) { return (event.mask & IN_OPEN) != 0; }));
}

// A running writer may delete a checkpoint after its first reading.
TEST_F(ModelInAFile, OfTheNewestCheckpointInAFolderIsReadOnce) {
  TensorArchive run;
  add_part(run.tensors, std::string(kModelPrefix), tensors_of(*model()));
  seal(run);
  const auto newest = folder_ / "checkpoint-000002.safetensors";
  write_archive(folder_ / "checkpoint-000001.safetensors", run);
  write_archive(newest, run);
  SavedModel found;
  const int opens =
      count_opens(newest, [&] { found = read_saved_model(folder_.path()); });
  EXPECT_EQ(opens, 1);
  EXPECT_EQ(found.file, newest.string());
  EXPECT_EQ(differences(tensors_of(*model()), found.tensors), "");
}

TEST_F(ModelInAFile, ThatCannotBeReadIsAnErrorOnEveryRank) {
  std::ofstream(file()) << "12345";
  run_ranks("shm", 2, [&](const std::shared_ptr<ProcessGroup>& group) {
    for (const std::filesystem::path& path :
         {folder_ / "m.safetensors", folder_ / "none", folder_.path()})
      EXPECT_THAT(error_text<Error>([&] { read_saved_model(path, *group); }),
                  HasSubstr(path.string()));
  });
}

}  // namespace
}  // namespace lockstep
