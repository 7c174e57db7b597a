#include "src/download/base_address.h"

#include <gmock/gmock.h>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(BaseAddress, TakesAFilesNameBehindOneSlash) {
  for (const char* base :
       {"https://host:8080/a%20b", "https://host:8080/a%20b/"})
    EXPECT_EQ(address_of(base, "t.gz"), "https://host:8080/a%20b/t.gz");
  EXPECT_EQ(address_of("file:///data", "t.gz"), "file:///data/t.gz");
}

TEST(BaseAddress, IsOfAServerOrAFolder) {
  for (const char* base : {"http://host", "https://[::1]/", "file:///"})
    check_base_address(base);
  for (const char* base : {"", "host", "/data", "ftp://host/", "file://host/a",
                           "http://", "gopher://host/", "HTTP"})
    EXPECT_THAT(error_text([&] { check_base_address(base); }),
                HasSubstr("next:"))
        << base;
}

TEST(BaseAddress, HasNothingBehindThePath) {
  for (const char* base : {"http://host/?token=1", "http://host/#a",
                           "http://host/a b", "http://host/\n"})
    EXPECT_THAT(error_text([&] { check_base_address(base); }),
                AllOf(HasSubstr("has a blank"), HasSubstr("next:")))
        << base;
}

}  // namespace
}  // namespace lockstep
