#include "apps/download/base_address.h"

#include <gmock/gmock.h>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(BaseAddress, TakesAFilesNameBehindOneSlash) {
  for (const char* base :
       {"https://host:8080/a%20b", "https://host:8080/a%20b/"})
    EXPECT_EQ(address_of(base, "t.gz"), "https://host:8080/a%20b/t.gz");
  EXPECT_EQ(address_of("file:///data", "t.gz"), "file:///data/t.gz");
}

TEST(BaseAddress, IsOfAServerOrAFolder) {
  for (const char* base : {"http://host", "https://[::1]/", "file:///",
                           "HTTPS://host/", "http://user:secret@host/"})
    check_base_address(base);
  for (const char* base :
       {"", "host", "ftp://host/", "file://host/a", "http://", "gopher://host/",
        "HTTP", "http://h:x/", "http://host/\n"})
    EXPECT_THAT(error_text([&] { check_base_address(base); }),
                HasSubstr("next:"))
        << base;
}

TEST(BaseAddress, HasNothingBehindThePath) {
  for (const char* base : {"http://host/?token=1", "http://host/#a"})
    EXPECT_THAT(error_text([&] { check_base_address(base); }),
                AllOf(HasSubstr("write %3F or %23"), HasSubstr("next:")))
        << base;
  EXPECT_THAT(error_text([] { check_base_address("http://host/a b"); }),
              HasSubstr("write %20"));
}

TEST(BaseAddress, IsNoPath) {
  EXPECT_THAT(error_text([] { check_base_address("/data/mnist"); }),
              HasSubstr("give file:///data/mnist"));
  EXPECT_THAT(error_text([] { check_base_address("./mnist"); }),
              HasSubstr("give file:///"));
}

TEST(BaseAddress, HasASchemeAndAPath) {
  EXPECT_EQ(scheme_of("HTTPS://host/"), "https");
  EXPECT_EQ(path_of("file:///a%20b/c"), "/a b/c");
}

TEST(BaseAddress, IsShownWithoutAPassword) {
  EXPECT_EQ(shown_address("http://user:secret@host:80/a@b"),
            "http://host:80/a@b");
  EXPECT_THAT(shown_address("http://user:sec/ret@host/"),
              Not(HasSubstr("sec")));
  EXPECT_THAT(error_text([] { check_base_address("ftp://user:secret@host/"); }),
              AllOf(HasSubstr("host"), Not(HasSubstr("secret"))));
}

}  // namespace
}  // namespace lockstep
