// What a run sees of its test images' files before it trains.
#include "apps/trainer/loop/test_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/data/transforms.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/comm/testing/run_ranks.h"
#include "src/data/image/image_writer.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

using FileBytes = std::vector<std::byte>;

// Its files are longer than the blocks that are read of them.
Image noisy_image(std::int64_t side) {
  Image image{.size = {side, side}};
  std::uint32_t number = 1;
  for (std::int64_t i = 0; i < side * side * 3; ++i) {
    number = number * 1664525 + 1013904223;
    image.pixels.push_back(static_cast<std::uint8_t>(number >> 24));
  }
  return image;
}

FileBytes cut(FileBytes file) {
  file.resize(file.size() - 1000);
  return file;
}

// As a camera writes it: with a small JPEG in a block of EXIF.
FileBytes with_preview(FileBytes file) {
  const FileBytes preview = write_jpeg(noisy_image(64));
  const auto length = static_cast<unsigned>(2 + 6 + preview.size());
  const std::array<unsigned, 10> begin{
      0xff, 0xe1, length >> 8, length & 0xff, 'E', 'x', 'i', 'f', 0, 0};
  FileBytes block;
  for (const unsigned number : begin)
    block.push_back(static_cast<std::byte>(number));
  block.insert(block.end(), preview.begin(), preview.end());
  file.insert(file.begin() + 2, block.begin(), block.end());
  return file;
}

class TheTestImages : public ::testing::Test {
 protected:
  void write(const std::string& name, const FileBytes& file) {
    std::filesystem::create_directories(folder_ / "a");
    std::ofstream(folder_ / "a" / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(file.data()),
               static_cast<std::streamsize>(file.size()));
  }

  std::string problem_on(int ranks) const {
    TrainingData data;
    data.test = std::make_shared<const ImageFolder>(folder_.path(),
                                                    Compose("resize((8, 8))"));
    return error_text([&] {
      run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
        check_test_images(options_, data, *group);
      });
    });
  }

  TestDirectory folder_;
  TrainerOptions options_;
};

TEST_F(TheTestImages, AreNotDecodedIfTheirFilesLookWhole) {
  FileBytes png = write_png(noisy_image(300));
  ASSERT_GT(png.size(), std::size_t{200} << 10);
  // Decoding would find it.
  png[png.size() / 2] ^= std::byte{1};
  write("a.png", png);
  write("b.jpg", with_preview(write_jpeg(noisy_image(300))));
  EXPECT_EQ(problem_on(1), "no error");
}

TEST_F(TheTestImages, AreRefusedIfTheirFilesAreCut) {
  const FileBytes jpeg = with_preview(write_jpeg(noisy_image(100)));
  for (const auto& [name, file] :
       {std::pair{"a.png", cut(write_png(noisy_image(300)))},
        std::pair{"a.jpg", cut(jpeg)}}) {
    write(name, file);
    EXPECT_THAT(problem_on(1), HasSubstr(name));
    std::filesystem::remove(folder_ / "a" / name);
  }
}

// Rank 0 has two of the files, rank 1 one of them.
TEST_F(TheTestImages, AreLeftOutByWhatSufficesForEveryRank) {
  for (const char* name : {"a.png", "b.png", "c.png"})
    write(name, cut(write_png(noisy_image(20))));
  const std::string problem = problem_on(2);
  EXPECT_THAT(problem, HasSubstr("--max-broken 2"));
  options_.max_broken = 1;
  EXPECT_THAT(problem_on(2), HasSubstr("--max-broken 2"));
  options_.max_broken = 2;
  EXPECT_EQ(problem_on(2), "no error");
}

}  // namespace
}  // namespace lockstep
