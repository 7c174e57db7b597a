#include "src/comm/diagnosis/operation_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

Operation all_reduce(std::uint64_t sequence, std::string_view label = "") {
  return {
      .kind = OperationKind::kAllReduce, .sequence = sequence, .label = label};
}

TEST(OperationRing, RemembersWhatWasCalledAndHowItEnded) {
  const auto ring = std::make_unique<OperationRing>();
  std::vector<double> data(7);
  const Buffer buffer = view(data);
  Operation operation = all_reduce(5, "gradients of layer 3");
  operation.outputs = Buffers(buffer);
  const auto first = ring->begin(3, operation);
  const auto second = ring->begin(4, {.kind = OperationKind::kReceive,
                                      .outputs = Buffers(buffer),
                                      .peer = kAnySource,
                                      .tag = 9,
                                      .sequence = 1});
  ring->set_ticket(second, 77);
  ring->set_awaited(second);
  EXPECT_EQ(ring->find(first), signature_of(operation));
  EXPECT_TRUE(ring->settle(first, OperationState::kCompleted));
  EXPECT_FALSE(ring->find(first).has_value());

  const auto entries = ring->read();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].group, 3u);
  EXPECT_EQ(entries[0].signature, signature_of(operation));
  EXPECT_EQ(entries[0].label, "gradients of layer 3");
  EXPECT_EQ(entries[0].state, OperationState::kCompleted);
  EXPECT_GE(entries[0].ended, entries[0].started);
  EXPECT_EQ(entries[1].state, OperationState::kStarted);
  EXPECT_EQ(entries[1].peer, kAnySource);
  EXPECT_EQ(entries[1].tag, 9);
  EXPECT_EQ(entries[1].signature.elements, 7u);
  EXPECT_EQ(entries[1].ticket, 77u);
  EXPECT_TRUE(entries[1].awaited);
  EXPECT_EQ(entries[1].label, "");
}

TEST(OperationRing, CountsOnlyTheFirstEndOfAnOperation) {
  const auto ring = std::make_unique<OperationRing>();
  const auto number = ring->begin(0, all_reduce(1));
  EXPECT_TRUE(ring->settle(number, OperationState::kFailed));
  EXPECT_FALSE(ring->settle(number, OperationState::kCompleted));
  EXPECT_EQ(ring->read().at(0).state, OperationState::kFailed);
}

TEST(OperationRing, CutsPlacesThatAreLong) {
  const auto ring = std::make_unique<OperationRing>();
  const std::string label = std::string(200, 'p') + "/loop.cc:123";
  ring->begin(0, all_reduce(1, label));
  const std::string kept = ring->read().at(0).label;
  EXPECT_EQ(kept.size(), OperationRing::kLabelBytes);
  EXPECT_THAT(kept, AllOf(StartsWith("ppp"), HasSubstr("p...p"),
                          EndsWith("p/loop.cc:123")));
}

TEST(OperationRing, KeepsTheLastThousandAndLeavesNewerEntriesAlone) {
  const auto ring = std::make_unique<OperationRing>();
  constexpr std::uint64_t kOperations = 3000;
  for (std::uint64_t i = 0; i < kOperations; ++i) ring->begin(0, all_reduce(i));
  ring->set_ticket(1, 5);
  ring->set_awaited(1);
  EXPECT_FALSE(ring->settle(1, OperationState::kFailed));
  const auto entries = ring->read();
  ASSERT_GE(entries.size(), 1000u);
  EXPECT_EQ(entries.back().signature.sequence, kOperations - 1);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].number, kOperations - entries.size() + i);
    EXPECT_EQ(entries[i].state, OperationState::kStarted);
    EXPECT_EQ(entries[i].ticket, 0u);
    EXPECT_FALSE(entries[i].awaited);
  }
}

// Every word of an entry says the same number, so that a mixture shows.
TEST(OperationRing, IsReadWholeWhileOthersWrite) {
  const auto ring = std::make_unique<OperationRing>();
  std::atomic<bool> enough{false};
  std::vector<std::thread> writers;
  for (int w = 0; w < 2; ++w)
    writers.emplace_back([&] {
      for (std::uint64_t i = 1; !enough; ++i) {
        const std::string label(8, static_cast<char>('a' + i % 26));
        const auto number =
            ring->begin(static_cast<std::uint32_t>(i), all_reduce(i, label));
        ring->settle(number, OperationState::kCompleted);
      }
    });
  for (int look = 0; look < 300; ++look)
    for (const RingEntry& entry : ring->read()) {
      const std::uint64_t i = entry.signature.sequence;
      ASSERT_EQ(entry.group, static_cast<std::uint32_t>(i));
      ASSERT_EQ(entry.label, std::string(8, static_cast<char>('a' + i % 26)));
    }
  enough = true;
  for (std::thread& writer : writers) writer.join();
}

}  // namespace
}  // namespace lockstep
