#include "apps/download/download.h"

#include <gmock/gmock.h>

#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "apps/download/checksum.h"
#include "apps/download/testing/archive_file.h"
#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class RecordedView final : public DownloadView {
 public:
  void file_was_there(const fs::path& file) override {
    there.push_back(file.filename().string());
  }
  void file_grows(const fs::path&, std::uint64_t, std::uint64_t) override {}
  void file_is_complete(const fs::path& file, std::uint64_t arrived,
                        std::chrono::duration<double>) override {
    complete.push_back(file.filename().string());
    bytes += arrived;
  }

  std::vector<std::string> there{};
  std::vector<std::string> complete{};
  std::uint64_t bytes = 0;
};

constexpr std::array kContents{KnownFile{"train.bin", 5, ""},
                               KnownFile{"test.bin", 3, ""}};

// An archive in the place of CIFAR-100's, in a folder instead of on a server.
class ArchiveDownload : public testing::Test {
 protected:
  ArchiveDownload() {
    fs::create_directory(folder_ / "server");
    ArchiveFile file(archive_);
    file.add({.path = "cifar-100-binary/train.bin", .contents = "train"});
    file.add({.path = "cifar-100-binary/test.bin", .contents = "abc"});
    file.close();
    md5_ = md5_of_file(archive_);
    files_ = {KnownFile{"a.tar.gz", fs::file_size(archive_), md5_}};
  }

  RecordedView download(WrongFiles wrong = WrongFiles::kRefuse) const {
    RecordedView view;
    download_dataset({.known = {.name = "cifar100",
                                .base = {},
                                .packing = Packing::kTarGzip,
                                .files = files_,
                                .contents = kContents},
                      .base = "file://" + (folder_ / "server").string(),
                      .folder = data_,
                      .wrong = wrong},
                     view);
    return view;
  }

  void expect_files() const {
    EXPECT_EQ(contents(inner_ / "train.bin"), "train");
    EXPECT_EQ(contents(inner_ / "test.bin"), "abc");
    EXPECT_FALSE(fs::exists(data_ / "a.tar.gz.part"));
  }

  TestDirectory folder_;
  fs::path archive_ = folder_ / "server/a.tar.gz";
  fs::path data_ = folder_ / "data";
  fs::path inner_ = data_ / "cifar-100-binary";
  std::string md5_;
  std::vector<KnownFile> files_;
};

TEST_F(ArchiveDownload, IsUnpackedWhereTrainingLooks) {
  const RecordedView view = download();
  expect_files();
  EXPECT_THAT(view.complete, ElementsAre("cifar-100-binary"));
  EXPECT_EQ(view.bytes, files_[0].bytes);
  fs::remove(archive_);
  EXPECT_THAT(download().there, ElementsAre("train.bin", "test.bin"));
}

TEST_F(ArchiveDownload, GoesOnFromAPart) {
  fs::create_directory(data_);
  std::ofstream(data_ / "a.tar.gz.part", std::ios::binary)
      << contents(archive_).substr(0, 50);
  EXPECT_EQ(download().bytes, files_[0].bytes - 50);
  expect_files();
}

TEST_F(ArchiveDownload, RemovesAPartThatNothingNeeds) {
  download();
  std::ofstream(data_ / "a.tar.gz.part") << "stale";
  download();
  expect_files();
}

TEST_F(ArchiveDownload, NamesAPartThatWasWrongWithoutARequest) {
  fs::create_directory(data_);
  std::ofstream(data_ / "a.tar.gz.part") << std::string(files_[0].bytes, 'x');
  EXPECT_THAT(error_text<Error>([&] { download(); }),
              HasSubstr("a.tar.gz.part is not the known file"));
}

TEST_F(ArchiveDownload, TakesAnArchiveThatIsThere) {
  fs::create_directory(data_);
  fs::rename(archive_, data_ / "a.tar.gz");
  EXPECT_THAT(download().there, ElementsAre("a.tar.gz"));
  expect_files();
  EXPECT_TRUE(fs::exists(data_ / "a.tar.gz"));
}

TEST_F(ArchiveDownload, ReplacesAFileOfAnotherSizeOnRequest) {
  fs::create_directories(inner_);
  std::ofstream(inner_ / "test.bin") << "mine";
  EXPECT_THAT(error_text<Error>([&] { download(); }), HasSubstr("--force"));
  EXPECT_EQ(contents(inner_ / "test.bin"), "mine");
  download(WrongFiles::kReplace);
  expect_files();
}

TEST_F(ArchiveDownload, RefusesAFileThatTrainingWouldReadInstead) {
  fs::create_directory(data_);
  std::ofstream(data_ / "test.bin") << "mine";
  EXPECT_THAT(error_text<Error>([&] { download(WrongFiles::kReplace); }),
              HasSubstr("instead of"));
}

TEST_F(ArchiveDownload, RemovesAnArchiveWithAWrongChecksum) {
  std::string damaged = contents(archive_);
  damaged[60] = static_cast<char>(damaged[60] ^ 1);
  std::ofstream(archive_, std::ios::binary) << damaged;
  EXPECT_THAT(error_text<Error>([&] { download(); }), HasSubstr(md5_));
  EXPECT_TRUE(fs::is_empty(data_));
}

}  // namespace
}  // namespace lockstep
