#include "apps/job/input_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kNoError = "no error";  // of error_text()

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

std::string error_in_data(const std::string& dataset,
                          const std::string& folder) {
  return error_text([&] { check_training_data(dataset, folder); });
}

// Issue 43, point 15: each rank met what the command can see.
TEST(InputFiles, AreMissedBeforeRanksStart) {
  const TestDirectory made;
  EXPECT_THAT(error_in_data("mnist", made / "nowhere"),
              AllOf(HasSubstr("there is no directory"), HasSubstr("nowhere"),
                    HasSubstr("--data-dir")));
  for (const char* file :
       {"train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte"})
    write(made / file, "");
  EXPECT_THAT(
      error_text([&] { check_split("mnist", made.path(), Split::kTest); }),
      HasSubstr("no file t10k-labels-idx1-ubyte"));
  write(made / "t10k-labels-idx1-ubyte", "");
  EXPECT_EQ(error_in_data("mnist", made.path()), kNoError);
}

TEST(InputFiles, OfAFolderOfImagesNeedBothSplits) {
  const TestDirectory made;
  EXPECT_THAT(error_in_data("imagefolder", made / "nowhere"),
              HasSubstr("there is no folder"));
  write(made / "train/cats/1.png", "");
  EXPECT_THAT(error_in_data("imagefolder", made.path()), HasSubstr("val"));
  write(made / "val/cats/1.png", "");
  EXPECT_EQ(error_in_data("imagefolder", made.path()), kNoError);
  check_split("imagefolder", made.path(), Split::kTest);
}

TEST(InputFiles, OfADataSetThatTheModelNamesNeedAFolder) {
  const TestDirectory made;
  EXPECT_THAT(error_text([&] { check_split("", made / "no", Split::kTest); }),
              HasSubstr("--data-dir"));
  check_split("", made.path(), Split::kTest);
  check_split("", "", Split::kTest);
}

TEST(InputFiles, MayBeModelsByTheirFirstBytes) {
  const TestDirectory made;
  const auto error_of = [&](const std::string& bytes) {
    write(made / "file", bytes);
    return error_text([&] { check_may_be_model(made / "file"); });
  };
  const std::string length("\x02\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(error_of(length + "{}"), kNoError);
  EXPECT_EQ(error_of("PK\x03\x04 and more"), kNoError);
  EXPECT_EQ(error_of("\x80\x02 and more"), kNoError);
  EXPECT_EQ(error_of("cut"), kNoError);  // the ranks say how long it should be
  EXPECT_THAT(error_of("# A text about models\n"), HasSubstr("holds no model"));
  check_may_be_model(made.path());
  check_may_be_model(made / "missing");
}

}  // namespace
}  // namespace lockstep
