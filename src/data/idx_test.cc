#include "src/data/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/data/testing/idx_samples.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

IdxArray decode(const FileBytes& file, std::size_t dimension_count) {
  return decode_idx(std::as_bytes(std::span(file)), dimension_count,
                    "images.idx");
}

std::string message_of(const FileBytes& file, std::size_t dimension_count) {
  return error_text([&] { decode(file, dimension_count); });
}

auto says(std::size_t offset, const std::string& expected,
          const std::string& found) {
  return AllOf(HasSubstr("cannot read images.idx"),
               HasSubstr("offset:   " + std::to_string(offset) + "\n"),
               HasSubstr("expected: " + expected),
               HasSubstr("found:    " + found));
}

FileBytes without_end(FileBytes file, std::size_t bytes) {
  file.resize(file.size() - bytes);
  return file;
}

TEST(Idx, DecodesPlainAndCompressedFilesAlike) {
  const FileBytes file = idx_file({2, 3, 4}, counting(24));
  for (const FileBytes& stored : {file, gzip(file)}) {
    const IdxArray array = decode(stored, 3);
    EXPECT_THAT(array.dimensions, ElementsAre(2, 3, 4));
    EXPECT_EQ(array.elements, counting(24));
  }
}

TEST(Idx, DecodesACompressedFileOfSeveralMembers) {
  const FileBytes file = idx_file({100}, counting(100));
  FileBytes stored = gzip({file.begin(), file.begin() + 50});
  const FileBytes rest = gzip({file.begin() + 50, file.end()});
  stored.insert(stored.end(), rest.begin(), rest.end());
  EXPECT_EQ(decode(stored, 1).elements, counting(100));
}

TEST(Idx, DecodesAnEmptyArray) {
  for (const FileBytes& stored : {idx_file({0}, {}), gzip(idx_file({0}, {}))})
    EXPECT_TRUE(decode(stored, 1).elements.empty());
}

TEST(Idx, RefusesAWrongMagicNumber) {
  const FileBytes labels = idx_file({5}, counting(5));
  for (const FileBytes& stored : {labels, gzip(labels)})
    EXPECT_THAT(message_of(stored, 3), says(0, "0x00000803", "0x00000801"));
}

TEST(Idx, RefusesAnotherElementType) {
  FileBytes file = idx_file({1}, {1, 2, 3, 4});
  file[2] = 0x0d;  // float32
  EXPECT_THAT(message_of(file, 1), says(0, "0x00000801", "0x00000d01"));
}

TEST(Idx, RefusesAFileThatEndsInTheHeader) {
  const FileBytes file = idx_file({2, 2}, counting(4));
  EXPECT_THAT(message_of({}, 1), says(0, "a magic number", "the end"));
  EXPECT_THAT(
      message_of(without_end(file, 6), 2),
      says(10, "a dimension of 4 bytes", "the end of the data after 2"));
}

TEST(Idx, RefusesTooFewElements) {
  EXPECT_THAT(message_of(idx_file({2, 3}, counting(5)), 2),
              says(4, "2 x 3 bytes", "room for at most 5"));
  EXPECT_THAT(message_of(gzip(idx_file({2, 3}, counting(5))), 2),
              says(17, "2 x 3 = 6 bytes", "the end of the data after 5"));
}

TEST(Idx, RefusesTooManyElements) {
  const FileBytes file = idx_file({2, 3}, counting(7));
  for (const FileBytes& stored : {file, gzip(file)})
    EXPECT_THAT(message_of(stored, 2),
                says(18, "the end of the data, after 2 x 3 = 6 bytes", "more"));
}

TEST(Idx, RefusesSizesThatTheFileCannotHoldBeforeAskingForMemory) {
  const std::uint32_t most = 0xffffffff;
  const FileBytes four_gib = idx_file({most}, counting(3));
  const FileBytes overflowing = idx_file({most, most, most}, counting(3));
  // 2^32 * 2^32 wraps to 0, which would fit.
  const FileBytes wrapping = idx_file({0x80000000, 0x80000000, 4}, counting(3));
  for (const FileBytes& stored : {four_gib, gzip(four_gib)})
    EXPECT_THAT(message_of(stored, 1), says(4, "4294967295 bytes", "room for"));
  for (const FileBytes& stored :
       {overflowing, gzip(overflowing), wrapping, gzip(wrapping)})
    EXPECT_THAT(message_of(stored, 3), HasSubstr("room for at most"));
}

TEST(Idx, AcceptsTheMostThatDeflateCanShrink) {
  const FileBytes zeros(20'000'000);
  EXPECT_EQ(decode(gzip(idx_file({20'000'000}, zeros)), 1).elements, zeros);
}

TEST(Idx, RefusesATruncatedGzipFileWhereverItIsCut) {
  const FileBytes stored = gzip(idx_file({1000}, counting(1000)));
  for (std::size_t size = 2; size < stored.size(); ++size) {
    const FileBytes cut(stored.begin(),
                        stored.begin() + static_cast<std::ptrdiff_t>(size));
    // The bound on the contents catches short cuts.
    EXPECT_THAT(message_of(cut, 1),
                AllOf(HasSubstr("offset: "), HasSubstr("expected: "),
                      HasSubstr("found: ")))
        << size << " of " << stored.size();
  }
  EXPECT_THAT(message_of(without_end(stored, 1), 1),
              AllOf(HasSubstr("truncated"),
                    says(stored.size() - 1, "more compressed data",
                         "the end of the file, after 1008 decompressed")));
}

TEST(Idx, RefusesAGzipFileWithAWrongChecksum) {
  FileBytes stored = gzip(idx_file({10}, counting(10)));
  stored[stored.size() - 8] ^= 1;
  EXPECT_THAT(message_of(stored, 1),
              AllOf(HasSubstr("corrupt"), HasSubstr("incorrect data check")));
}

TEST(Idx, RefusesWhatFollowsTheGzipData) {
  FileBytes stored = gzip(idx_file({10}, counting(10)));
  const std::size_t end = stored.size();
  stored.insert(stored.end(), {'j', 'u', 'n', 'k'});
  EXPECT_THAT(message_of(stored, 1),
              says(end, "the end of the file", "4 more bytes"));
}

TEST(Idx, RefusesImpossibleNumbersOfDimensions) {
  EXPECT_THROW(decode(idx_file({1}, {1}), 0), InvalidArgument);
  EXPECT_THROW(decode(idx_file({1}, {1}), 256), InvalidArgument);
}

TEST(Idx, SaysWhatTheSystemSaysOfAFileThatCannotBeOpened) {
  EXPECT_THROW(read_idx_file("/nowhere/images.idx", 3), SystemError);
}

TEST(Idx, RefusesADirectory) {
  EXPECT_THROW(read_idx_file(testing::TempDir(), 3), InvalidArgument);
}

// Changes, cuts, repeats or inserts a few bytes.
FileBytes mutate(FileBytes file, std::mt19937_64& random) {
  for (std::uint64_t change = 1 + random() % 4; change > 0; --change) {
    const auto at = file.begin() +
                    static_cast<std::ptrdiff_t>(random() % (file.size() + 1));
    const auto value = static_cast<std::uint8_t>(random());
    switch (random() % 4) {
      case 0:
        if (at != file.end()) *at = value;
        break;
      case 1:
        if (at != file.end()) *at ^= static_cast<std::uint8_t>(1 << value % 8);
        break;
      case 2:
        file.erase(at, file.end());
        break;
      case 3:
        file.insert(at, value);
        break;
    }
  }
  return file;
}

TEST(Idx, DecodesOrRefusesWhateverTheBytes) {
  const FileBytes plain = idx_file({3, 4, 5}, counting(60));
  const FileBytes packed = gzip(plain);
  int decoded = 0;
  constexpr std::uint64_t kSeeds = 20'000;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const FileBytes file = mutate(seed % 2 == 0 ? plain : packed, random);
    try {
      const IdxArray array = decode(file, 3);
      ++decoded;
      std::size_t count = 1;
      for (const std::size_t dimension : array.dimensions) count *= dimension;
      ASSERT_EQ(array.elements.size(), count);
    } catch (const InvalidArgument&) {
      // The only error that the bytes may cause.
    }
  }
  // Both outcomes occurred.
  EXPECT_GT(decoded, 100);
  EXPECT_LT(decoded, static_cast<int>(kSeeds) - 100);
}

}  // namespace
}  // namespace lockstep
