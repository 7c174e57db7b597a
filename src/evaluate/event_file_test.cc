#include "lockstep/evaluate/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/base/text_file.h"
#include "src/evaluate/framed_record.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

std::string content_of(const std::filesystem::path& path) {
  return read_text_file(path, 1 << 20);
}

// The checksum of "123456789" is the known check value of RFC 3720's
// polynomial, 0xe3069283, rotated right by 15 bits plus 0xa282ead8.
TEST(EventFile, FramesRecordsWithMaskedChecksums) {
  using std::string_literals::operator""s;
  const std::string record = framed_record("123456789");
  ASSERT_EQ(record.size(), 8u + 4 + 9 + 4);
  EXPECT_EQ(record.substr(0, 8), "\x09\0\0\0\0\0\0\0"s);
  EXPECT_EQ(record.substr(12, 9), "123456789");
  const std::uint32_t masked =
      (0xe3069283U >> 15 | 0xe3069283U << 17) + 0xa282ead8U;
  for (unsigned i = 0; i < 4; ++i)
    EXPECT_EQ(static_cast<unsigned char>(record[21 + i]),
              masked >> 8 * i & 0xff);
}

TEST(EventFile, HasANameThatTensorBoardKnowsAndThatNoOtherHas) {
  const TestDirectory folder;
  const EventFile first(folder.path());
  const EventFile second(folder.path());
  EXPECT_THAT(first.path().filename().string(),
              MatchesRegex("events\\.out\\.tfevents\\.[0-9]{10}\\..+\\.0"));
  EXPECT_NE(first.path(), second.path());
  EXPECT_THAT(content_of(first.path()), HasSubstr("brain.Event:2"));
}

// A reader takes the files in the order of their names.
TEST(EventFile, ComesAfterAllThatAreInTheFolder) {
  const TestDirectory folder;
  const std::filesystem::path future =
      folder.path() / "events.out.tfevents.5000000000.other-host.1.0";
  std::ofstream(future).flush();
  // No event files.
  std::ofstream(folder.path() / "tfevents.7000000000.x.1.0").flush();
  std::ofstream(folder.path() / "events.out.tfevents.70000000ab.x.1.0").flush();
  std::vector<std::filesystem::path> paths{future};
  for (int run = 0; run < 12; ++run)
    paths.push_back(EventFile(folder.path()).path());
  EXPECT_TRUE(std::ranges::is_sorted(paths));
  EXPECT_THAT(paths[1].filename().string(),
              StartsWith("events.out.tfevents.5000000001."));
}

TEST(EventFile, HasEachPointWhenTheCallReturns) {
  const TestDirectory folder;
  EventFile file(folder.path());
  const std::size_t before = content_of(file.path()).size();
  const std::vector<Scalar> scalars{{"train/loss", 2}, {"train/accuracy", 1}};
  file.add(7, scalars);
  const std::string added = content_of(file.path()).substr(before);
  EXPECT_THAT(added, HasSubstr("train/loss"));
  EXPECT_THAT(added, HasSubstr("train/accuracy"));
  EXPECT_EQ(added, framed_record(added.substr(12, added.size() - 16)));
}

TEST(EventFile, TakesPointsInBraces) {
  const TestDirectory folder;
  EventFile file(folder.path());
  const double loss = 0.5;
  file.add(1, {{"train/loss", loss}});
  const std::size_t one = content_of(file.path()).size();
  file.add(2, {{"train/loss", loss}, {"train/accuracy", 1}});
  EXPECT_THAT(content_of(file.path()).substr(0, one), HasSubstr("train/loss"));
  EXPECT_THAT(content_of(file.path()).substr(one), HasSubstr("train/accuracy"));
}

// TensorBoard discards earlier points from the step of the record on.
TEST(EventFile, KeepsThePointOfTheStepAtWhichARunResumes) {
  const TestDirectory folder;
  EventFile file(folder.path());
  const std::size_t before = content_of(file.path()).size();
  file.begin_at(30);
  const std::string record = content_of(file.path()).substr(before);
  // Field 2, the step, then field 7, the message {1: START}.
  EXPECT_THAT(record, HasSubstr("\x10\x1f\x3a\x02\x08\x01"));
}

TEST(EventFile, RefusesATagThatNoReaderTakesAndStaysAsItWas) {
  const TestDirectory folder;
  EventFile file(folder.path());
  const std::string before = content_of(file.path());
  for (const char* tag : {"", "loss\xff"}) {
    const std::vector<Scalar> scalars{{"train/loss", 2}, {tag, 1}};
    EXPECT_THAT(error_text([&] { file.add(7, scalars); }),
                testing::AllOf(HasSubstr("cannot have a curve named"),
                               HasSubstr("next:")));
  }
  EXPECT_EQ(content_of(file.path()), before);
}

TEST(EventFile, IsRefusedWhereTheFolderIsNone) {
  const TestDirectory folder;
  EXPECT_THAT(
      error_text<SystemError>([&] { EventFile(folder.path() / "absent"); }),
      testing::AllOf(StartsWith("cannot write \""),
                     HasSubstr("No such file or directory")));
}

}  // namespace
}  // namespace lockstep
