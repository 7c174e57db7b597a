#include "src/base/progress_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/progress_records.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

const EndRecord kEnd{.model_path = "a \"quoted\"\nü path",
                     .test_accuracy = 0.91,
                     .seconds = 33,
                     .notes = {"half of it was sent"},
                     .hints = {"lockstep train --model mlp"}};

ProgressRecord round_trip(const ProgressRecord& record) {
  return decode_progress(encode_progress(record)).value();
}

std::string error_of(const std::string& line) {
  return error_text([&] { decode_progress(line); });
}

TEST(ProgressRecord, SurvivesTheWayThroughALine) {
  for (const ProgressRecord& record :
       std::array<ProgressRecord, 4>{kStart, kStep, kEpoch, kEnd})
    EXPECT_EQ(round_trip(record), record) << encode_progress(record);
}

TEST(ProgressRecord, IsOneLineAsTheFormatPageHasIt) {
  EXPECT_EQ(encode_progress(kStep),
            R"({"record":"step","epoch":3,"epochs":5,"step":312,"steps":469,)"
            R"("loss":0.287,"images_per_second":9870.0,"seconds_left":1.25})"
            "\n");
  const std::string end = encode_progress(kEnd);
  EXPECT_EQ(end.find('\n'), end.size() - 1);
}

TEST(ProgressRecord, CarriesALossThatIsNotFiniteAsNaN) {
  for (const double loss : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    StepRecord step = kStep;
    step.loss = loss;
    EXPECT_TRUE(std::isnan(std::get<StepRecord>(round_trip(step)).loss));
  }
}

TEST(ProgressRecord, MayLeaveTheTestAccuracyOut) {
  EpochRecord epoch = kEpoch;
  epoch.test_accuracy.reset();
  EXPECT_EQ(round_trip(epoch), ProgressRecord(epoch));
}

TEST(ProgressRecord, MayLeaveSpeedAndTimeOfAnEpochOut) {
  EpochRecord epoch = kEpoch;
  epoch.images_per_second.reset();
  epoch.seconds.reset();
  EXPECT_EQ(round_trip(epoch), ProgressRecord(epoch));
}

TEST(ProgressRecord, ReplacesTextThatIsNotUtf8) {
  EndRecord end = kEnd;
  end.model_path = "a\xff";
  EXPECT_EQ(std::get<EndRecord>(round_trip(end)).model_path, "a\xef\xbf\xbd");
}

TEST(ProgressRecord, OfAKindFromTheFutureIsSkipped) {
  EXPECT_EQ(decode_progress(R"({"record":"checkpoint","step":4})"),
            std::nullopt);
}

TEST(ProgressRecord, IgnoresFieldsFromTheFuture) {
  std::string line = encode_progress(kStep);
  line.insert(1, R"("colour":"blue",)");
  EXPECT_EQ(decode_progress(line), ProgressRecord(kStep));
}

TEST(ProgressRecord, RefusesWhatIsNoRecord) {
  for (const char* line : {"", "{", "[]", "1", "null", "{}", "hello",
                           R"({"record":4})", R"({"record":"step"} x)"})
    EXPECT_THAT(error_of(line), HasSubstr("not a progress record")) << line;
  EXPECT_THAT(error_of(std::string(kMaxProgressLineBytes + 1, 'x')),
              HasSubstr("too long"));
}

TEST(ProgressRecord, NamesTheFieldThatIsMissingOrWrong) {
  EXPECT_THAT(error_of(R"({"record":"step","epoch":3})"),
              HasSubstr("\"epochs\" is missing"));
  EXPECT_THAT(error_of(R"({"record":"step","epoch":"three"})"),
              HasSubstr("must be number"));
}

TEST(ProgressRecord, ThatIsTooLongIsNotWritten) {
  EndRecord end = kEnd;
  end.model_path.assign(kMaxProgressLineBytes, 'x');
  EXPECT_THROW(encode_progress(end), InvalidArgument);
}

TEST(WriteProgress, PutsTheLineIntoThePipe) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  write_progress(ends[1], kEpoch);
  std::array<char, 4096> buffer{};
  const ssize_t count = ::read(ends[0], buffer.data(), buffer.size());
  ASSERT_GT(count, 0);
  EXPECT_EQ(std::string_view(buffer.data(), static_cast<std::size_t>(count)),
            encode_progress(kEpoch));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(WriteProgress, SaysWhyItCouldNot) {
  try {
    write_progress(-1, kEpoch);
    FAIL() << "wrote to no descriptor";
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Bad file descriptor"));
  }
}

}  // namespace
}  // namespace lockstep
