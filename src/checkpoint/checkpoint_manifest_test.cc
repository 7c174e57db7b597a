#include "src/checkpoint/checkpoint_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CheckpointManifest some_manifest() {
  return {.step = 700,
          .texts = {{"lockstep.ranks", "2"}, {"lockstep.job.a \"b\"", "ü\n"}},
          .shards = {{shard_name(0, 2), 1234, "0123abcd"},
                     {shard_name(1, 2), std::uint64_t{1} << 40, "ffffffff"}}};
}

std::string manifest_refusal(const std::string& text) {
  return error_text<InvalidArgument>([&] { parse_manifest(text, "m.json"); });
}

TEST(CheckpointManifest, IsReadAsItWasWritten) {
  const std::string text = to_text(some_manifest());
  const CheckpointManifest read = parse_manifest(text, "m.json");
  EXPECT_EQ(read.step, 700);
  EXPECT_EQ(read.texts, some_manifest().texts);
  ASSERT_EQ(read.shards.size(), 2u);
  EXPECT_EQ(read.shards[1].file, "shard-00001-of-00002.safetensors");
  EXPECT_EQ(read.shards[1].bytes, std::uint64_t{1} << 40);
  EXPECT_EQ(to_text(read), text);
}

TEST(CheckpointManifest, IsRefusedAtEveryShorterLength) {
  const std::string text = to_text(some_manifest());
  for (std::size_t length = 0; length + 1 < text.size(); ++length)
    EXPECT_THAT(manifest_refusal(text.substr(0, length)),
                AllOf(HasSubstr("\"m.json\" is damaged"),
                      HasSubstr("use an earlier checkpoint")))
        << length;
}

// Also of the version: the run may use an earlier checkpoint then.
TEST(CheckpointManifest, IsDamagedByEveryFlippedBit) {
  const std::string text = to_text(some_manifest());
  for (std::size_t bit = 0; bit < text.size() * 8 - 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_THAT(manifest_refusal(flipped), HasSubstr("\"m.json\" is damaged"))
        << "bit " << bit;
  }
}

TEST(CheckpointManifest, OfALaterVersionIsNotTakenForDamaged) {
  for (const char* text :
       {R"({"version": 2})",
        R"({"version": 2, "step": 1, "texts": {}, "shards": [],
            "checksum": "00000000"})"})
    EXPECT_THAT(
        error_text<NewerCheckpoint>([&] { parse_manifest(text, "m.json"); }),
        HasSubstr("of format 2"))
        << text;
  EXPECT_THAT(manifest_refusal(R"({"version": 0})"), HasSubstr("is damaged"));
  EXPECT_THAT(manifest_refusal("[]"), HasSubstr("not a JSON object"));
}

TEST(CheckpointManifest, NamesNoOtherFilesThanItsShards) {
  for (const char* name : {"../shard-00001-of-00002.safetensors", "/etc/passwd",
                           "", "shard-00000-of-00002.safetensors",
                           "shard-00001-of-00002.safetensors/"}) {
    CheckpointManifest manifest = some_manifest();
    manifest.shards[1].file = name;
    EXPECT_THAT(manifest_refusal(to_text(manifest)),
                HasSubstr("its shard of rank 1 is called"))
        << name;
  }
  EXPECT_THAT(manifest_refusal(to_text({.step = 1})),
              HasSubstr("names no shards"));
}

TEST(ShardMetadata, SaysWhichPartsTheShardHas) {
  const ShardedParts parts{
      {"a", {.shape = {4, 5}, .begin = 7}},
      {"b \"c\"", {.shape = {2, 3, 4, 5}, .begin = 0, .order = {0, 2, 3, 1}}}};
  const auto metadata = shard_metadata(parts, 700, 3);
  EXPECT_EQ(parse_shard_metadata(metadata, 700, 3, "s"), parts);
  const auto refusal = [&](auto change) {
    auto changed = parts;
    change(changed["b \"c\""]);
    return error_text<InvalidArgument>([&] {
      parse_shard_metadata(shard_metadata(changed, 700, 3), 700, 3, "s");
    });
  };
  for (const std::vector<std::int64_t>& order :
       {std::vector<std::int64_t>{0, 1}, {0, 1, 2, 4}, {0, 0, 1, 2}, {-1}})
    EXPECT_THAT(refusal([&](auto& part) { part.order = order; }),
                HasSubstr("is not one of its shape"));
  EXPECT_THAT(refusal([](auto& part) { part.begin = -1; }),
              HasSubstr("is not one of its shape"));
  for (const auto& [step, rank] : {std::pair(701, 3), {700, 2}})
    EXPECT_THAT(error_text<InvalidArgument>([&, step = step, rank = rank] {
                  parse_shard_metadata(metadata, step,
                                       static_cast<std::size_t>(rank), "s");
                }),
                HasSubstr("expected rank"));
  EXPECT_THAT(error_text<InvalidArgument>(
                  [] { parse_shard_metadata({}, 700, 3, "s"); }),
              HasSubstr("\"s\" is damaged"));
}

}  // namespace
}  // namespace lockstep
