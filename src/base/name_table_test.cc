#include "src/base/name_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kTable = std::to_array<NamedValue<int>>(
    {{"one", 1}, {"two", 2, "a pair"}, {"three", 3}});

TEST(NameTable, FindsARowByItsNameAndRefusesOthers) {
  EXPECT_EQ(row_named(kTable, "number", "two").value, 2);
  EXPECT_THAT(error_text([] { row_named(kTable, "number", "thre"); }),
              AllOf(HasSubstr("unknown number \"thre\""),
                    HasSubstr("did you mean \"three\"?"),
                    HasSubstr("one, two, three")));
}

TEST(NameTable, ListsNamesForPeople) {
  EXPECT_THAT(names_in(kTable), ElementsAre("one", "two", "three"));
  EXPECT_EQ(list_names(kTable), "one, two (a pair) or three");
  EXPECT_EQ(
      list_names(kTable, "and", [](const auto& row) { return row.value != 2; }),
      "one and three");
  EXPECT_EQ(listed({"one"}, "or"), "one");
}

}  // namespace
}  // namespace lockstep
