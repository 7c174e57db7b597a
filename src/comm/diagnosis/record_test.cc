#include "src/comm/diagnosis/record.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "lockstep/base/error.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

RankRecord example() {
  OperationRecord operation{.number = 7,
                            .group = 1,
                            .state = OperationState::kFailed,
                            .label = "gradients \"3\"",
                            .started_at = 1700000000.25,
                            .ended_at = 1700000001.5,
                            .awaited = true};
  operation.signature = {.sequence = 412,
                         .elements = 1 << 24,
                         .layout = 99,
                         .kind = 7,
                         .type = 3,
                         .reduction = 4,
                         .division = 1,
                         .root = 2,
                         .buffers = 3};
  OperationRecord receive{.number = 8, .peer = kAnySource, .tag = 5};
  receive.signature.kind = static_cast<std::uint8_t>(OperationKind::kReceive);
  return {.version = "0.1.0",
          .job = "node-a/17/1",
          .rank = 2,
          .world_size = 8,
          .host = "node-b",
          .pid = 1234,
          .written_at = 1700000002,
          .reason = "failure",
          .failures = {{.at = 1700000001.5,
                        .group = 1,
                        .operation = 7,
                        .type = "PeerFailure",
                        .message = "rank 5 is gone\n  next: …",
                        .culprit = 5}},
          .groups = {{.id = 1,
                      .name = "[2,5]#1",
                      .backend = "shm",
                      .rank = 0,
                      .size = 2,
                      .members = {2, 5},
                      .left = true,
                      .last_started = 412,
                      .last_completed = 411}},
          .operations = {operation, receive}};
}

// Whether a valid record's text is refused after a replacement.
bool is_refused(const std::string& from, const std::string& to) {
  std::string text = encode_record(example());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at == std::string::npos) return false;
  text.replace(at, from.size(), to);
  try {
    decode_record(text);
  } catch (const InvalidArgument&) {
    return true;
  }
  return false;
}

TEST(Record, ReadsWhatItWrote) {
  EXPECT_EQ(decode_record(encode_record(example())), example());
}

TEST(Record, ReplacesWhatIsNotUtf8) {
  RankRecord record = example();
  record.host = "b\xff";
  EXPECT_EQ(decode_record(encode_record(record)).host, "b\xef\xbf\xbd");
}

TEST(Record, RefusesWhatContradictsItself) {
  EXPECT_FALSE(is_refused("\"rank\": 2", "\"rank\": 3"));
  EXPECT_TRUE(is_refused("\"rank\": 2", "\"rank\": 8"));
  EXPECT_TRUE(is_refused("\"rank\": 2", "\"rank\": -1"));
  EXPECT_TRUE(is_refused("\"rank\": 2", "\"rank\": 99999999999999"));
  EXPECT_TRUE(is_refused("\"rank\": 2", "\"rank\": 1.5"));
  EXPECT_TRUE(is_refused("\"size\": 2", "\"size\": 3"));
  EXPECT_TRUE(is_refused("\"version\": 1", "\"version\": 2"));
  EXPECT_TRUE(is_refused("lockstep record", "lockstep receipt"));
  EXPECT_TRUE(is_refused("reduce_scatter", "reduce_gather"));
  EXPECT_TRUE(is_refused("\"operations\": [", "\"operators\": ["));
}

TEST(Record, RefusesEveryBeginningOfItself) {
  const std::string text = encode_record(example());
  const std::size_t end = text.find_last_of('}');
  for (std::size_t length = 0; length <= end; length += 3)
    EXPECT_THROW(decode_record(text.substr(0, length)), InvalidArgument);
}

TEST(Record, IsDescribedInTheWordsOfTheOperation) {
  const RankRecord record = example();
  EXPECT_EQ(describe(record.operations[0]),
            "reduce_scatter_v #412 (average, 16777216 x bfloat16) at gradients "
            "\"3\"");
  EXPECT_EQ(short_name(record.operations[0].signature),
            "reduce_scatter_v #412");
  EXPECT_EQ(describe(record.operations[1]),
            "receive #0 (0 x float32) from any rank, tag 5");
}

TEST(Record, IsWrittenWholeIntoAFolderThatIsMadeForIt) {
  const TestDirectory folder;
  const std::filesystem::path below = folder / "a/b";
  write_record(below, example());
  std::ifstream file(below / "rank-2.json");
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), encode_record(example()));
  for (const auto& entry : std::filesystem::directory_iterator(below))
    EXPECT_EQ(entry.path().filename(), "rank-2.json");
  EXPECT_THROW(write_record(below / "rank-2.json", example()), SystemError);
}

}  // namespace
}  // namespace lockstep
