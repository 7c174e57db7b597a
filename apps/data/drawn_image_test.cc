#include "apps/data/drawn_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <set>

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Ge;
using testing::Le;

Image drawn(int class_index, std::uint64_t index, const ImageSize& size) {
  SampleRandom random(5, 0, index);
  return draw_image(class_index, size, random);
}

double mean_of(const Image& image) {
  return std::accumulate(image.pixels.begin(), image.pixels.end(), 0.0) /
         static_cast<double>(image.pixels.size());
}

TEST(DrawnImage, HasAHundredClassesWithNamesForFolders) {
  const std::vector<std::string> names = drawn_class_names(kMostDrawnClasses);
  EXPECT_EQ(std::set(names.begin(), names.end()).size(), 100u);
  for (const std::string& name : names)
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"),
              std::string::npos)
        << name;
  EXPECT_THAT(drawn_class_names(2), testing::ElementsAre("circle", "ring"));
}

TEST(DrawnImage, HasTheGivenSizeAndDiffersByImage) {
  for (const ImageSize size : {ImageSize{16, 16}, ImageSize{40, 23}}) {
    const Image image = drawn(3, 0, size);
    EXPECT_EQ(image.size, size);
    EXPECT_EQ(std::ssize(image.pixels), size.height * size.width * 3);
    EXPECT_EQ(image.pixels, drawn(3, 0, size).pixels);
    EXPECT_NE(image.pixels, drawn(3, 1, size).pixels);
  }
}

// With the same numbers drawn, two classes differ in what they show alone.
TEST(DrawnImage, ShowsEachClassAnotherThing) {
  using Pixels = std::vector<std::uint8_t>;
  std::set<std::vector<Pixels>> shown;
  for (int class_index = 0; class_index < kMostDrawnClasses; ++class_index)
    shown.insert({drawn(class_index, 0, {16, 16}).pixels,
                  drawn(class_index, 1, {16, 16}).pixels,
                  drawn(class_index, 2, {16, 16}).pixels});
  EXPECT_EQ(shown.size(), 100u);
}

TEST(DrawnImage, GivesNoClassAColorOfItsOwn) {
  constexpr std::uint64_t kImages = 400;
  std::vector<double> means;
  for (int class_index = 0; class_index < 10; ++class_index) {
    double sum = 0;
    for (std::uint64_t i = 0; i < kImages; ++i)
      sum += mean_of(drawn(class_index, i * 10 + class_index, {16, 16}));
    means.push_back(sum / kImages);
  }
  // The deviation of a single image is above 30.
  EXPECT_THAT(means, Each(AllOf(Ge(120), Le(136))));
}

}  // namespace
}  // namespace lockstep
