#include "src/launch/nodes/host_list.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal_of_list(const std::string& list) {
  return error_text<InvalidArgument>([&] { parse_host_list(list); });
}

TEST(HostList, NamesHostsAndTheirSlots) {
  EXPECT_THAT(parse_host_list("a:2,ada@b.example,10.0.0.1:16"),
              ElementsAre(HostSlots{"a", 2}, HostSlots{"ada@b.example", 0},
                          HostSlots{"10.0.0.1", 16}));
}

TEST(HostList, TakesIpv6NumbersWithBracketsAndWithout) {
  EXPECT_THAT(
      parse_host_list("[fd77::1]:4,[fd77::2],fd77::3,fe80::1%eth0"),
      ElementsAre(HostSlots{"fd77::1", 4}, HostSlots{"fd77::2", 0},
                  HostSlots{"fd77::3", 0}, HostSlots{"fe80::1%eth0", 0}));
}

TEST(HostList, RefusesWhatIsNoHost) {
  for (const char* list :
       {"", "a,", ",a", "a b", "-oProxyCommand=x", "a;b", "$(x)", "[fd77::1",
        ":2", "ada@", "@b", "@", "a@b@c", "node:1:2"})
    EXPECT_THAT(refusal_of_list(list), HasSubstr("does not name a host"))
        << list;
}

TEST(HostList, RefusesSlotsThatAreNoNumberOfRanks) {
  for (const char* list : {"a:", "a:0", "a:-1", "a:x", "a:2x", "a:1025",
                           "a:99999999999", "[fd77::1]4"})
    EXPECT_THAT(refusal_of_list(list),
                HasSubstr("number of ranks from 1 to 1024"))
        << list;
}

TEST(HostList, RefusesAHostThatIsNamedTwice) {
  EXPECT_THAT(refusal_of_list("a:2,b,a:2"), HasSubstr("\"a\" is named twice"));
  EXPECT_THAT(refusal_of_list("Node,node"), HasSubstr("is named twice"));
}

class HostFile : public testing::Test {
 protected:
  std::vector<HostSlots> read(const std::string& text) {
    std::ofstream(path_) << text;
    return read_host_file(path_);
  }

  std::string refusal(const std::string& text) {
    return error_text<InvalidArgument>([&] { read(text); });
  }

  TestDirectory folder_;
  std::string path_ = (folder_ / "hosts").string();
};

TEST_F(HostFile, HasALinePerHost) {
  EXPECT_THAT(
      read("# two racks\na slots=2\n\n  b:4  # the old one\r\nc\n"),
      ElementsAre(HostSlots{"a", 2}, HostSlots{"b", 4}, HostSlots{"c", 0}));
}

TEST_F(HostFile, SaysWhichLineIsWrong) {
  EXPECT_THAT(refusal("a\nb slots=x\n"), HasSubstr("hosts, line 2: "));
  EXPECT_THAT(refusal("a:2 slots=2\n"), HasSubstr("HOST slots=SLOTS"));
  EXPECT_THAT(refusal("a slots=2 max_slots=4\n"), HasSubstr("HOST:SLOTS"));
  EXPECT_THAT(refusal("a\na\n"), HasSubstr("is named twice"));
  EXPECT_THAT(refusal("# nothing\n"), HasSubstr("is empty"));
}

TEST_F(HostFile, MustExist) {
  EXPECT_THROW(read_host_file(path_), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
