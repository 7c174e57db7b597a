#include "apps/download/checksum.h"

#include <gmock/gmock.h>

#include <fstream>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Md5, AgreesWithItsStandard) {  // RFC 1321, appendix A.5
  Md5 none;
  EXPECT_EQ(none.hex(), "d41d8cd98f00b204e9800998ecf8427e");
  Md5 letters;
  letters.update(bytes_of("message "));
  letters.update(bytes_of("digest"));
  EXPECT_EQ(letters.hex(), "f96b697d7cb7938d525a2f31aaf161d0");
}

TEST(Md5, OfAFileIsThatOfItsBytes) {
  const TestDirectory folder;
  const std::string text(3'000'001, 'x');
  std::ofstream(folder / "file") << text;
  Md5 md5;
  md5.update(bytes_of(text));
  EXPECT_EQ(md5_of_file(folder / "file"), md5.hex());
  EXPECT_THAT(error_text<SystemError>([&] { md5_of_file(folder / "absent"); }),
              testing::HasSubstr("absent"));
}

}  // namespace
}  // namespace lockstep
