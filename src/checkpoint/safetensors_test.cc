#include "src/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// A whole file with this header and this data.
std::string file_of(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

std::string refusal_of(const std::string& file) {
  return error_text(
      [&] { parse_safetensors(bytes_of(file), "a.safetensors"); });
}

std::string entry(const std::string& type, const std::string& shape,
                  const std::string& offsets) {
  return R"({"dtype":")" + type + R"(","shape":)" + shape +
         R"(,"data_offsets":)" + offsets + "}";
}

TEST(Safetensors, GivesBackEveryTypeShapeAndMetadata) {
  const TestDirectory directory;
  std::vector<std::byte> data(6 * 8, std::byte{1});
  std::vector<TensorBytes> tensors;
  for (std::size_t i = 0; i < kSafetensorsTypes; ++i) {
    const auto type = static_cast<SafetensorsType>(i);
    tensors.push_back({"layer." + std::string(name_of(type)),
                       type,
                       {2, 3},
                       std::span(data).first(6 * size_of(type))});
  }
  tensors.push_back(
      {"scalar", SafetensorsType::kF64, {}, std::span(data).first(8)});
  tensors.push_back({"empty", SafetensorsType::kI8, {4, 0}, {}});
  const SafetensorsMetadata metadata{{"format", "pt"}, {"naïve \"x\"", "\n"}};
  write_safetensors(directory / "m", tensors, metadata);

  const SafetensorsFile file(directory / "m");
  EXPECT_EQ(file.view().metadata, metadata);
  ASSERT_EQ(file.view().tensors.size(), tensors.size());
  for (const TensorBytes& written : tensors) {
    const auto read = std::ranges::find(file.view().tensors, written.name,
                                        &TensorBytes::name);
    ASSERT_NE(read, file.view().tensors.end()) << written.name;
    EXPECT_EQ(read->type, written.type);
    EXPECT_EQ(read->shape, written.shape);
    EXPECT_TRUE(std::ranges::equal(read->bytes, written.bytes));
  }
}

TEST(Safetensors, LaysEveryTensorOutAlignedAndTheSameWhateverTheOrder) {
  const TestDirectory directory;
  const std::string data(64, '\0');
  std::vector<TensorBytes> tensors{
      {"a", SafetensorsType::kI8, {3}, bytes_of(data).first(3)},
      {"b", SafetensorsType::kF64, {2}, bytes_of(data).first(16)},
      {"c", SafetensorsType::kF16, {1}, bytes_of(data).first(2)},
      {"d", SafetensorsType::kF32, {5}, bytes_of(data).first(20)}};
  write_safetensors(directory / "one", tensors);
  std::ranges::reverse(tensors);
  write_safetensors(directory / "two", tensors);
  const std::string one = contents(directory / "one");
  EXPECT_EQ(one, contents(directory / "two"));
  const auto view = parse_safetensors(bytes_of(one), "one");
  for (const TensorBytes& tensor : view.tensors)
    EXPECT_EQ((tensor.bytes.data() - bytes_of(one).data()) %
                  static_cast<std::ptrdiff_t>(size_of(tensor.type)),
              0)
        << tensor.name;
}

TEST(Safetensors, CutShortAnywhereIsRefusedWithTheFilesName) {
  const std::string whole =
      file_of(R"({"w":)" + entry("F32", "[2]", "[0,8]") + "}", "12345678");
  ASSERT_EQ(refusal_of(whole), "no error");
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THAT(refusal_of(whole.substr(0, size)), HasSubstr("a.safetensors"))
        << size;
}

TEST(Safetensors, RefusesAHeaderLongerThanTheFileOrTheLimit) {
  std::string file = file_of("{}");
  file[7] = '\x7f';
  EXPECT_THAT(refusal_of(file), HasSubstr("announce a header of 91"));
  std::string large(8 + 100'000'001, ' ');
  const std::uint64_t length = 100'000'001;
  std::memcpy(large.data(), &length, 8);
  EXPECT_THAT(refusal_of(large), HasSubstr("at most 100000000"));
}

struct BadHeader {
  std::string header;
  std::string problem;
};

TEST(Safetensors, RefusesWhatIsAmbiguousOrWrongAndSaysWhy) {
  const std::string good = entry("U8", "[4]", "[0,4]");
  const std::vector<BadHeader> cases{
      {"[]", "begins with '{'"},
      {"{", "not JSON"},
      {R"({"w":)" + good + "}" + '\0', "a zero byte"},
      {R"({"w":1})", "its entry is not an object"},
      {R"({"w":{"shape":[4],"data_offsets":[0,4]}})", "no dtype"},
      {R"({"w":)" + entry("C64", "[4]", "[0,4]") + "}", "shape takes 32 bytes"},
      {R"({"w":)" + entry("F4", "[8]", "[0,4]") + "}", "\"F4\" is not one of"},
      {R"({"w":)" +
           entry("U8", "[4611686018427387904,4611686018427387904,0]", "[0,0]") +
           "}",
       "uncountably many"},
      {R"({"w":)" +
           entry("U8", "[0,9223372036854775807,9223372036854775807]", "[0,0]") +
           "}",
       "uncountably many"},
      {R"({"w":)" + entry("U8", "[-4]", "[0,4]") + "}", "shape"},
      {R"({"w":)" + entry("U8", "[4.0]", "[0,4]") + "}", "shape"},
      {R"({"w":)" + entry("U8", "4", "[0,4]") + "}", "shape"},
      {R"({"w":)" + entry("U8", "[4]", "[4]") + "}", "[begin, end]"},
      {R"({"w":)" + entry("U8", "[4]", "[4,0]") + "}", "[begin, end]"},
      {R"({"w":)" + entry("U8", "[5]", "[0,5]") + "}", "only 4 bytes"},
      {R"({"w":)" + entry("U8", "[3]", "[0,4]") + "}", "shape takes 3 bytes"},
      {R"({"w":)" + entry("U8", "[4294967296,4294967296]", "[0,4]") + "}",
       "uncountably many"},
      {R"({"w":)" + entry("BOOL", "[4]", "[0,4]") + "}", "neither 0 nor 1"},
      {R"({"w":)" + good + R"(,"w":)" + good + "}", "the key \"w\" twice"},
      {R"({"w":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})",
       "the key \"dtype\" twice"},
      {R"({"v":)" + good + R"(,"w":)" + good + "}", "begins at byte 0"},
      {R"({"w":)" + entry("U8", "[3]", "[0,3]") + "}",
       "1 bytes at its end belong to no tensor"},
      {R"({"w":)" + entry("U8", "[3]", "[1,4]") + "}", "expected at 0"},
      {R"({"__metadata__":{"a":1},"w":)" + good + "}", "not a string"},
      {R"({"w":)" + std::string(9, '[') + std::string(9, ']') + "}",
       "nested too deeply"}};
  for (const auto& [header, problem] : cases)
    EXPECT_THAT(refusal_of(file_of(header, "abcd")), HasSubstr(problem))
        << header;
}

// Any bytes give a result or an error.
TEST(Safetensors, SurvivesRandomDamage) {
  const std::string whole = file_of(
      R"({"__metadata__":{"a":"b"},"w":)" + entry("F32", "[2]", "[0,8]") +
          R"(,"v":)" + entry("BOOL", "[2,1]", "[8,10]") + "}",
      std::string("12345678\0\1", 10));
  ASSERT_EQ(refusal_of(whole), "no error");
  const auto seed =
      static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 20'000; ++round) {
    std::string damaged = whole;
    for (unsigned changes = 1 + random() % 3; changes > 0; --changes)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    refusal_of(damaged);
  }
}

TEST(Safetensors, WillNotWriteTwoTensorsOfOneNameOrBytesThatDoNotFit) {
  const TestDirectory directory;
  const std::string data(8, '\0');
  const TensorBytes tensor{"w", SafetensorsType::kI64, {1}, bytes_of(data)};
  const std::array twice{tensor, tensor};
  EXPECT_THROW(write_safetensors(directory / "m", twice), InvalidArgument);
  std::array wrong{tensor};
  wrong[0].shape = {2};
  EXPECT_THROW(write_safetensors(directory / "m", wrong), InvalidArgument);
  wrong = {tensor};
  wrong[0].name = "\xff";
  EXPECT_THROW(write_safetensors(directory / "m", wrong), InvalidArgument);
  EXPECT_TRUE(directory.entries().empty());
}

TEST(Safetensors, WritesNothingThatItsReaderWouldRefuse) {
  const TestDirectory directory;
  const std::string two(1, '\2'), much(100'000'001, 'x');
  const std::array flag{
      TensorBytes{"flag", SafetensorsType::kBool, {1}, bytes_of(two)}};
  const std::array<TensorBytes, 0> none{};
  const auto refusal = [&](std::span<const TensorBytes> tensors,
                           const SafetensorsMetadata& metadata) {
    return error_text(
        [&] { write_safetensors(directory / "m", tensors, metadata); });
  };
  EXPECT_THAT(refusal(flag, {}), HasSubstr("\"flag\" cannot be saved: a bool"));
  EXPECT_THAT(refusal(none, {{"text", "\xff"}}),
              HasSubstr("the text \"text\" to save with tensors is not UTF-8"));
  EXPECT_THAT(refusal(none, {{"\xff", "text"}}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(refusal(none, {{"text", much}}), HasSubstr("allows 100000000"));
  EXPECT_TRUE(directory.entries().empty());
}

TEST(Safetensors, NamesAFileThatCannotBeRead) {
  const TestDirectory directory;
  try {
    const SafetensorsFile file(directory / "absent");
    FAIL() << "it was read";
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), HasSubstr("absent\": No such file"));
  }
}

}  // namespace
}  // namespace lockstep
