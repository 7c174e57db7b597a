#include "src/data/cifar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/data/testing/cifar_samples.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr CifarLabels kTen{.bytes = 1, .classes = 10};
constexpr CifarLabels kHundred{.bytes = 2, .classes = 100};

CifarImages decode(const std::vector<std::uint8_t>& bytes,
                   const CifarLabels& form) {
  CifarImages images;
  append_cifar(std::as_bytes(std::span(bytes)), form, "file", images);
  return images;
}

std::string refusal(const std::vector<std::uint8_t>& bytes,
                    const CifarLabels& form) {
  return error_text<InvalidArgument>([&] { decode(bytes, form); });
}

TEST(CifarFile, HasAClassAndThePlanesOfEachImage) {
  std::vector<std::uint8_t> bytes = cifar_file({{7}, {2}});
  std::iota(bytes.begin() + 1, bytes.begin() + 1 + kCifarPixels,
            std::uint8_t{0});
  const CifarImages images = decode(bytes, kTen);
  EXPECT_THAT(images.labels, ElementsAre(7, 2));
  ASSERT_EQ(images.pixels.size(), 2 * kCifarPixels);
  EXPECT_TRUE(std::ranges::equal(std::span(images.pixels).first(kCifarPixels),
                                 std::span(bytes).subspan(1, kCifarPixels)));
}

TEST(CifarFile, OfAHundredClassesHasTheSuperclassFirst) {
  EXPECT_THAT(decode(cifar_file({{19, 11}, {4, 99}}), kHundred).labels,
              ElementsAre(11, 99));
}

TEST(CifarFile, IsAppendedToEarlierOnes) {
  CifarImages images = decode(cifar_file({{1}}), kTen);
  const auto more = cifar_file({{2}, {3}});
  append_cifar(std::as_bytes(std::span(more)), kTen, "more", images);
  EXPECT_THAT(images.labels, ElementsAre(1, 2, 3));
  EXPECT_EQ(images.pixels.size(), 3 * kCifarPixels);
}

TEST(CifarFile, OfAnotherLengthIsRefusedWhereTheLastWholeImageEnds) {
  std::vector<std::uint8_t> bytes = cifar_file({{1}, {2}});
  bytes.pop_back();
  EXPECT_THAT(
      refusal(bytes, kTen),
      AllOf(HasSubstr("cannot read file: it does not consist of whole"),
            HasSubstr("offset:   3073\n"), HasSubstr("of 3073 bytes each"),
            HasSubstr("found:    3072 bytes there")));
  EXPECT_THAT(refusal({}, kTen), HasSubstr("found:    0 bytes there"));
  EXPECT_THAT(refusal(cifar_file({{1}}), kHundred),
              HasSubstr("of 3074 bytes each"));
}

TEST(CifarFile, WithAClassThatDoesNotExistIsRefused) {
  EXPECT_THAT(refusal(cifar_file({{1}, {10}}), kTen),
              AllOf(HasSubstr("offset:   3073\n"), HasSubstr("0 to 9"),
                    HasSubstr("found:    10")));
  EXPECT_THAT(refusal(cifar_file({{1, 100}}), kHundred),
              AllOf(HasSubstr("offset:   1\n"), HasSubstr("0 to 99")));
}

}  // namespace
}  // namespace lockstep
