#include "src/comm/hybrid/calls_of_host.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep {
namespace {

constexpr std::size_t kRoom = std::size_t{16} << 10;

AnnouncedCall call(std::uint64_t elements, const std::string& label = "") {
  AnnouncedCall made;
  made.signature.elements = elements;
  set_label(made.label, label);
  return made;
}

std::vector<AnnouncedCall> after_the_way(
    const std::vector<AnnouncedCall>& calls) {
  std::vector<std::byte> message;
  append_calls(message, calls, kRoom);
  EXPECT_LE(message.size(), kRoom);
  // The room of a message is always there.
  message.resize(kRoom);
  return read_calls(message, calls.size());
}

void expect_equal(const std::vector<AnnouncedCall>& some,
                  const std::vector<AnnouncedCall>& others) {
  ASSERT_EQ(some.size(), others.size());
  for (std::size_t rank = 0; rank < some.size(); ++rank) {
    EXPECT_EQ(some[rank].signature, others[rank].signature) << rank;
    EXPECT_EQ(some[rank].label_text(), others[rank].label_text()) << rank;
  }
}

TEST(CallsOfAHost, ReachTheOthersForMoreRanksThanAMessageHasRoomForCalls) {
  std::vector<AnnouncedCall> calls;
  for (std::size_t rank = 0; rank < 3000; ++rank)
    calls.push_back(call(rank % 7, rank % 5 == 0 ? "loss" : "gradients"));
  calls.back() = call(1234, "late");
  expect_equal(after_the_way(calls), calls);
}

TEST(CallsOfAHost, AreTheFirstRanksWhereAMessageHasNoRoom) {
  std::vector<AnnouncedCall> calls;
  for (std::size_t rank = 0; rank < 10'000; ++rank) calls.push_back(call(rank));
  const auto told = after_the_way(calls);
  EXPECT_EQ(told[90].signature, calls[90].signature);
  EXPECT_EQ(told[300].signature, calls[0].signature);
  EXPECT_EQ(told[9'999].signature, calls[0].signature);
}

TEST(CallsOfAHost, AreReadFromNoMoreBytesThanThereAre) {
  const std::vector<std::byte> all_ones(200, std::byte{0xff});
  for (std::size_t bytes = 0; bytes <= all_ones.size(); ++bytes)
    EXPECT_EQ(read_calls(std::span(all_ones).first(bytes), 5).size(), 5u);
}

}  // namespace
}  // namespace lockstep
