#include "apps/download/transfer.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// From a folder; tests/download has a server.
class Transfer : public testing::Test {
 protected:
  std::uint64_t fetch() {
    return Connection().fetch(
        {.address = "file://" + source_.string(), .most_bytes = 6}, file_);
  }

  std::string refusal() {
    return error_text<NetworkError>([&] { fetch(); });
  }

  TestDirectory folder_;
  fs::path source_ = folder_ / "source";
  PartialFile file_{folder_ / "target"};
};

TEST_F(Transfer, GoesOnAndCountsWhatArrives) {
  std::ofstream(source_) << "abcdef";
  file_.append(std::as_bytes(std::span(std::string_view("abcd"))));
  EXPECT_EQ(fetch(), 2u);
  EXPECT_EQ(contents(file_.path()), "abcdef");
}

TEST_F(Transfer, KeepsAPartThatIsLongerThanTheFile) {
  std::ofstream(source_) << "abc";
  file_.append(std::as_bytes(std::span(std::string_view("abcde"))));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("not longer than the 5 bytes"),
                               HasSubstr("next:    delete")));
  EXPECT_EQ(contents(file_.path()), "abcde");
}

TEST_F(Transfer, KeepsAPartOfAFileThatIsTooLarge) {
  std::ofstream(source_) << "abcdefg";
  file_.append(std::as_bytes(std::span(std::string_view("abc"))));
  EXPECT_THAT(refusal(), HasSubstr("larger than the 6 bytes"));
  EXPECT_EQ(contents(file_.path()), "abc");
}

TEST_F(Transfer, ReadsRegularFilesAlone) {
  EXPECT_THAT(refusal(), HasSubstr("No such file"));
  fs::create_directory(source_);
  EXPECT_THAT(refusal(), HasSubstr("it is not a regular file"));
  fs::remove(source_);
  ASSERT_EQ(::mkfifo(source_.c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("it is not a regular file"));
}

TEST(TransferRedirects, StayEncrypted) {
  EXPECT_STREQ(redirect_protocols("HTTPS://host/a"), "https");
  EXPECT_STREQ(redirect_protocols("http://host/a"), "http,https");
}

}  // namespace
}  // namespace lockstep
