// One test per rule: the refused arguments, and the text of the error. The
// rules check only one rank's arguments, so the tests need no backend.
#include "src/comm/operation/validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// The arguments of a call, owned: rank 1 of a group of 3.
struct Call {
  OperationKind kind = OperationKind::kAllReduce;
  std::vector<Buffer> inputs{};
  std::vector<Buffer> outputs{};
  Division division = Division::kEven;
  ReduceOp reduction = ReduceOp::kSum;
  int root = 0;
  int peer = 0;
  int tag = 0;
};

constexpr int kRank = 1;
constexpr int kRanks = 3;

// The error of validate() for `call`.
std::string refusal(const Call& call) {
  return error_text([&] {
    validate({.kind = call.kind,
              .division = call.division,
              .inputs = call.inputs,
              .outputs = call.outputs,
              .reduction = call.reduction,
              .root = call.root,
              .peer = call.peer,
              .tag = call.tag},
             {.name = "gradients", .rank = kRank, .size = kRanks});
  });
}

struct Refused {
  Call call;
  std::string message;
};

void expect_refused(const std::vector<Refused>& rows) {
  for (const auto& [call, message] : rows)
    EXPECT_THAT(refusal(call), HasSubstr(message)) << name_of(call.kind);
}

void expect_allowed(const std::vector<Call>& calls) {
  for (const Call& call : calls) EXPECT_EQ(refusal(call), "no error");
}

// Memory for addresses; the tests never read or write it.
alignas(64) std::array<float, 64> elements;

// `count` floats that start `at` floats into `elements`.
Buffer part(std::size_t at, std::int64_t count) {
  return {elements.data() + at, count, DataType::kFloat32};
}

using enum OperationKind;
constexpr Division kUneven = Division::kPerRank;

TEST(Validation, NamesTheCallTheRankAndTheGroup) {
  EXPECT_EQ(refusal({.kind = kBroadcast, .outputs = {part(0, 1)}, .root = 3}),
            "broadcast: the root is rank 3, but the group has ranks 0 to 2 "
            "(rank 1 of group \"gradients\")");
  EXPECT_THAT(refusal({.kind = kAllGather,
                       .inputs = {part(0, 1)},
                       .outputs = {},
                       .division = kUneven}),
              HasSubstr("all_gather_v: "));
}

TEST(Validation, RefusesARootOutsideTheGroup) {
  for (const int root : {-1, kRanks, std::numeric_limits<int>::max()})
    for (const OperationKind kind : kAllCollectives) {
      const Call call{.kind = kind, .outputs = {part(0, 1)}, .root = root};
      if (has_root(kind)) {
        EXPECT_THAT(refusal(call),
                    HasSubstr("the root is rank " + std::to_string(root)));
      }
    }
}

TEST(Validation, RefusesAPeerThatCannotBe) {
  expect_refused({
      {{.kind = kSend, .inputs = {part(0, 1)}, .peer = 3},
       "send: to rank 3, but the group has ranks 0 to 2"},
      {{.kind = kSend, .inputs = {part(0, 1)}, .peer = kAnySource},
       "send: to rank -1, but"},
      {{.kind = kReceive, .outputs = {part(0, 1)}, .peer = -2},
       "receive: from rank -2, but"},
      {{.kind = kReceive, .outputs = {part(0, 1)}, .peer = 3},
       "receive: from rank 3, but"},
      {{.kind = kSend, .inputs = {part(0, 1)}, .peer = kRank},
       "a rank cannot send to itself"},
      {{.kind = kReceive, .outputs = {part(0, 1)}, .peer = kRank},
       "a rank cannot send to itself"},
  });
  expect_allowed(
      {{.kind = kReceive, .outputs = {part(0, 1)}, .peer = kAnySource}});
}

TEST(Validation, RefusesANegativeTag) {
  expect_refused({
      {{.kind = kSend, .inputs = {part(0, 1)}, .tag = -1},
       "the tag is -1; tags count from 0"},
      {{.kind = kReceive,
        .outputs = {part(0, 1)},
        .peer = kAnySource,
        .tag = std::numeric_limits<int>::min()},
       "tags count from 0"},
  });
  expect_allowed({{.kind = kSend,
                   .inputs = {part(0, 1)},
                   .tag = std::numeric_limits<int>::max()}});
}

TEST(Validation, RefusesNullBuffersThatHaveElements) {
  const Buffer null{nullptr, 5};
  Buffer unknown = part(0, 1);
  unknown.type = static_cast<DataType>(77);
  expect_refused({
      {{.outputs = {null}}, "a buffer of 5 elements has a null address"},
      {{.outputs = {unknown}}, "a buffer has the unknown data type 77"},
      {{.kind = kSend, .inputs = {null}}, "has a null address"},
      {{.kind = kAllGather, .inputs = {null}, .outputs = {part(0, 15)}},
       "has a null address"},
      {{.outputs = {part(0, 1), null}}, "has a null address"},
  });
  expect_allowed({{.outputs = {Buffer{nullptr, 0}}}, {.outputs = {}}});
}

TEST(Validation, RefusesCountsThatCannotBe) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  expect_refused({
      {{.outputs = {part(0, -1)}},
       "a buffer has -1 elements; a count cannot be negative"},
      {{.kind = kReceive, .outputs = {part(0, -3)}}, "has -3 elements"},
      {{.outputs = {part(0, 2), part(2, -1)}}, "cannot be negative"},
      {{.outputs = {part(0, kMost)}}, "more than any memory"},
      {{.kind = kAllGather,
        .inputs = {part(0, kMost / 2)},
        .outputs = {part(0, kMost)}},
       "more than any memory"},
  });
}

TEST(Validation, RefusesTypesAndDevicesThatAreMixed) {
  Buffer other = part(8, 1);
  other.type = DataType::kInt32;
  Buffer elsewhere = part(8, 1);
  elsewhere.device = {DeviceKind::kCuda, 1};
  expect_refused({
      {{.outputs = {part(0, 1), other}},
       "must have one type, but there are float32 and int32"},
      {{.kind = kScatter, .outputs = {part(0, 1), other}},
       "use one operation per type"},
      {{.kind = kAllToAll, .inputs = {part(0, 3)}, .outputs = {other}},
       "float32 and int32"},
      {{.outputs = {part(0, 1), elsewhere}}, "must be on one device"},
  });
}

TEST(Validation, RefusesBlocksOfTheWrongSize) {
  expect_refused({
      {{.kind = kAllGather, .inputs = {part(0, 2)}, .outputs = {part(8, 5)}},
       "output 0 has 5 elements; 3 ranks with 2 elements each need 6"},
      {{.kind = kGather,
        .inputs = {part(0, 2)},
        .outputs = {part(8, 7)},
        .root = kRank},
       "output 0 has 7 elements"},
      {{.kind = kScatter,
        .inputs = {part(0, 5)},
        .outputs = {part(8, 2)},
        .root = kRank},
       "input 0 has 5 elements; 3 ranks with 2 elements each need 6"},
      {{.kind = kReduceScatter,
        .inputs = {part(0, 6), part(8, 4)},
        .outputs = {part(16, 2), part(24, 1)}},
       "input 1 has 4 elements; 3 ranks with 1 elements each need 3"},
      {{.kind = kAllToAll, .inputs = {part(0, 3)}, .outputs = {part(8, 6)}},
       "input 0 has 3 elements but output 0 has 6"},
      {{.kind = kAllToAll, .inputs = {part(0, 4)}, .outputs = {part(8, 4)}},
       "4 elements, which 3 ranks cannot share evenly; use all_to_all_v"},
  });
  // Only the root's blocks matter.
  expect_allowed({{.kind = kGather, .inputs = {part(0, 2)}},
                  {.kind = kScatter, .outputs = {part(0, 2)}}});
}

TEST(Validation, RefusesListsThatDoNotPairUp) {
  expect_refused({
      {{.kind = kAllGather,
        .inputs = {part(0, 1), part(1, 1)},
        .outputs = {part(8, 3)}},
       "2 inputs but 1 outputs; each input needs its output"},
      {{.kind = kReduceScatter, .inputs = {}, .outputs = {part(8, 3)}},
       "1 outputs but 0 inputs; each output needs its input"},
      {{.kind = kAllToAll, .inputs = {part(0, 3)}, .outputs = {}},
       "1 inputs but 0 outputs"},
  });
}

TEST(Validation, RefusesUnevenListsThatDoNotHaveABufferARank) {
  expect_refused({
      {{.kind = kAllGather,
        .inputs = {part(0, 1)},
        .outputs = {part(8, 1), part(9, 1)},
        .division = kUneven},
       "2 outputs for 3 ranks; give one per rank"},
      {{.kind = kReduceScatter,
        .inputs = {part(0, 1)},
        .outputs = {part(8, 1)},
        .division = kUneven},
       "1 inputs for 3 ranks"},
      {{.kind = kAllToAll,
        .inputs = {part(0, 1), part(1, 1), part(2, 1)},
        .outputs = {part(8, 1)},
        .division = kUneven},
       "1 outputs for 3 ranks"},
  });
}

TEST(Validation, RefusesUnevenListsWhoseOwnPartsDiffer) {
  const std::vector<Buffer> list{part(8, 1), part(9, 2), part(11, 3)};
  expect_refused({
      {{.kind = kAllGather,
        .inputs = {part(0, 3)},
        .outputs = list,
        .division = kUneven},
       "the input has 3 elements, but output 1, this rank's own, has 2"},
      {{.kind = kReduceScatter,
        .inputs = list,
        .outputs = {part(0, 1)},
        .division = kUneven},
       "the output has 1 elements, but input 1, this rank's own, has 2"},
      {{.kind = kAllToAll,
        .inputs = list,
        .outputs = {part(24, 1), part(25, 1), part(26, 1)},
        .division = kUneven},
       "input 1 has 2 elements and output 1 has 1"},
  });
}

TEST(Validation, RefusesWrittenMemoryThatOverlapsAnything) {
  const std::string overlap = "two buffers overlap";
  expect_refused({
      {{.outputs = {part(0, 4), part(3, 4)}}, overlap},
      {{.outputs = {part(0, 4), part(8, 1), part(0, 4)}}, overlap},
      {{.outputs = {part(0, 9), part(2, 1), part(4, 1)}}, overlap},
      {{.kind = kBroadcast, .outputs = {part(0, 2), part(1, 2)}}, overlap},
      {{.kind = kAllToAll, .inputs = {part(0, 3)}, .outputs = {part(0, 3)}},
       overlap},
      {{.kind = kAllToAll, .inputs = {part(0, 3)}, .outputs = {part(2, 3)}},
       overlap},
      // Overlaps with another rank's block, with a part of the own block, and
      // with the other list's.
      {{.kind = kAllGather, .inputs = {part(0, 2)}, .outputs = {part(0, 6)}},
       overlap},
      {{.kind = kAllGather, .inputs = {part(3, 2)}, .outputs = {part(0, 6)}},
       overlap},
      {{.kind = kReduceScatter,
        .inputs = {part(0, 3), part(3, 3)},
        .outputs = {part(4, 1), part(1, 1)}},
       overlap},
  });
}

TEST(Validation, AllowsWhatIsReadToOverlap) {
  expect_allowed({
      {.kind = kAllGather,
       .inputs = {part(0, 2), part(1, 2)},
       .outputs = {part(8, 6), part(16, 6)}},
      {.outputs = {part(0, 4), part(4, 4)}},
      {.outputs = {part(4, 4), part(2, 0), part(0, 4)}},
  });
}

TEST(Validation, AllowsTheOwnBlockInPlace) {
  expect_allowed({
      {.kind = kAllGather, .inputs = {part(2, 2)}, .outputs = {part(0, 6)}},
      {.kind = kGather,
       .inputs = {part(2, 2)},
       .outputs = {part(0, 6)},
       .root = kRank},
      {.kind = kScatter,
       .inputs = {part(0, 6)},
       .outputs = {part(2, 2)},
       .root = kRank},
      {.kind = kReduceScatter,
       .inputs = {part(0, 6), part(6, 3)},
       .outputs = {part(2, 2), part(7, 1)}},
      {.kind = kAllGather,
       .inputs = {part(5, 2)},
       .outputs = {part(0, 5), part(5, 2), part(9, 0)},
       .division = kUneven},
      {.kind = kReduceScatter,
       .inputs = {part(0, 5), part(5, 2), part(9, 0)},
       .outputs = {part(5, 2)},
       .division = kUneven},
  });
}

TEST(Validation, RefusesReductionsThatATypeDoesNotHave) {
  for (const OperationKind kind : {kAllReduce, kReduce, kReduceScatter})
    for (const DataType type : kAllDataTypes)
      for (const ReduceOp op : kAllReductions) {
        const Buffer own{elements.data(), 1, type};
        const Buffer blocks{elements.data() + 8, 3, type};
        Call call{.kind = kind, .outputs = {own}, .reduction = op};
        if (kind == kReduceScatter) call.inputs = {blocks};
        const std::string what = std::string(name_of(op)) +
                                 " is not defined on " +
                                 std::string(name_of(type));
        if (is_defined(op, type))
          EXPECT_EQ(refusal(call), "no error");
        else
          EXPECT_THAT(refusal(call), HasSubstr(what));
      }
}

TEST(Validation, SaysWhatToDoInsteadOfAveragingIntegers) {
  Buffer integers = part(0, 1);
  integers.type = DataType::kInt64;
  EXPECT_THAT(refusal({.outputs = {integers}, .reduction = ReduceOp::kAverage}),
              HasSubstr("average is not defined on int64; use sum and divide"));
}

// A group's methods validate first, on every backend.
TEST(Validation, HappensBeforeACollectiveIsNumbered) {
  run_ranks("reference", 2, [](std::shared_ptr<ProcessGroup> group) {
    std::vector<float> data{1};
    if (group->rank() == 0) {
      EXPECT_THROW(group->broadcast(view(data), 2), InvalidArgument);
      EXPECT_THROW(group->send(view(data), 0), InvalidArgument);
      EXPECT_THROW(group->irecv(view(data), 1, -1), InvalidArgument);
    }
    // The ranks still agree on the sequence number.
    group->all_reduce(view(data), ReduceOp::kSum).wait();
    EXPECT_EQ(data[0], 2);
  });
}

}  // namespace
}  // namespace lockstep
