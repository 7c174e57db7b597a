#include "apps/download/known_downloads.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "apps/download/base_address.h"
#include "src/base/name_table.h"
#include "src/data/known_datasets.h"

namespace lockstep {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::MatchesRegex;

TEST(KnownDownloads, AreThoseThatTrainingKnows) {
  EXPECT_THAT(names_in(kDownloads), ElementsAreArray(names_in(kDatasets)));
}

TEST(KnownDownloads, HaveAddressesSizesAndChecksums) {
  for (const KnownDownload& known : kDownloads) {
    SCOPED_TRACE(known.name);
    check_base_address(std::string(known.base));
    EXPECT_TRUE(known.base.ends_with('/'));
    EXPECT_FALSE(known.files.empty());
    for (const KnownFile& file : known.files) {
      EXPECT_GT(file.bytes, 0u) << file.name;
      EXPECT_THAT(std::string(file.md5), MatchesRegex("[0-9a-f]{32}"));
      EXPECT_EQ(file.name.find('/'), file.name.npos);
    }
    for (const KnownFile& file : known.contents) {
      EXPECT_GT(file.bytes, 0u) << file.name;
      EXPECT_EQ(file.name.find('/'), file.name.npos);
    }
  }
}

TEST(KnownDownloads, OfGzipHaveAFileForEachOfTheirContents) {
  for (const KnownDownload& known : kDownloads) {
    if (known.packing != Packing::kGzip) {
      EXPECT_EQ(known.files.size(), 1u) << known.name;
      continue;
    }
    ASSERT_EQ(known.files.size(), known.contents.size()) << known.name;
    for (std::size_t i = 0; i < known.files.size(); ++i) {
      EXPECT_EQ(known.files[i].name,
                std::string(known.contents[i].name) + ".gz");
      EXPECT_THAT(std::string(known.contents[i].md5),
                  MatchesRegex("[0-9a-f]{32}"));
    }
  }
}

TEST(KnownDownloads, OfCifarHaveTheSizesOfTheirImages) {
  constexpr std::uint64_t kImages = 60'000;
  constexpr std::uint64_t kPixelBytes = 3072;
  for (const auto& [name, labels] : {std::pair{"cifar10", std::uint64_t{1}},
                                     std::pair{"cifar100", std::uint64_t{2}}}) {
    std::uint64_t bytes = 0;
    for (const KnownFile& file :
         row_named(kDownloads, "dataset", name).contents)
      bytes += file.bytes;
    EXPECT_EQ(bytes, kImages * (labels + kPixelBytes)) << name;
  }
}

}  // namespace
}  // namespace lockstep
