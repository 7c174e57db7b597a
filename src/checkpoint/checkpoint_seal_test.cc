#include "src/checkpoint/checkpoint_seal.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kVersion = "lockstep.checkpoint";
constexpr const char* kChecksum = "lockstep.checksum";

TensorArchive sealed() {
  TensorArchive archive{.tensors = {{"a", at::arange(6).view({2, 3})}},
                        .metadata = {{"of", "a run"}}};
  seal(archive);
  return archive;
}

// The error for the archive; checks its class too, where it matters.
template <class Refusal = InvalidArgument>
std::string refusal_of(const TensorArchive& archive) {
  return error_text<Refusal>([&] { check_seal(archive, "the file"); });
}

TEST(CheckpointSeal, HoldsWhatWasSealedAndNothingElse) {
  EXPECT_EQ(refusal_of(sealed()), "no error");
  TensorArchive changed = sealed();
  changed.tensors["a"][1][2] = 7;
  EXPECT_THAT(refusal_of(changed), HasSubstr("is damaged"));
  changed = sealed();
  changed.metadata["of"] = "a rum";
  EXPECT_THAT(refusal_of(changed), HasSubstr("is damaged"));
}

TEST(CheckpointSeal, TellsALaterVersionFromABitThatFlippedInOurs) {
  for (int bit = 0; bit < 8; ++bit) {
    TensorArchive flipped = sealed();
    std::string& version = flipped.metadata[kVersion];
    version[0] = static_cast<char>(version[0] ^ (1 << bit));
    EXPECT_THAT(refusal_of(flipped), HasSubstr("is damaged")) << version;
    EXPECT_THAT(refusal_of<NewerCheckpoint>(flipped),
                HasSubstr("another error"))
        << version;
  }
  for (const char* number : {"2", "3", "10"}) {
    TensorArchive later = sealed();
    later.metadata[kVersion] = number;
    later.metadata[kChecksum] = "01234567";
    EXPECT_THAT(refusal_of<NewerCheckpoint>(later),
                HasSubstr("is a checkpoint of format " + std::string(number)));
    later.metadata.erase(kChecksum);
    EXPECT_THAT(refusal_of<NewerCheckpoint>(later), HasSubstr("of format"));
  }
}

TEST(CheckpointSeal, SaysWhatIsWrong) {
  EXPECT_THAT(
      refusal_of({.tensors = sealed().tensors}),
      AllOf(HasSubstr("holds tensors, but no state of a run"),
            HasSubstr("such as checkpoint-000001"), Not(HasSubstr("--"))));
  TensorArchive changed = sealed();
  changed.metadata.erase(kChecksum);
  EXPECT_THAT(refusal_of(changed), HasSubstr("damaged: it has no checksum"));
  changed = sealed();
  const std::string right = changed.metadata[kChecksum];
  changed.metadata[kChecksum] = "01234567";
  EXPECT_THAT(refusal_of(changed),
              HasSubstr("its checksum is " + right + ", expected 01234567"));
  changed.metadata[kVersion] = "0";
  EXPECT_THAT(refusal_of(changed),
              AllOf(HasSubstr("it claims the unknown format \"0\""),
                    Not(HasSubstr("checksum is"))));
}

}  // namespace
}  // namespace lockstep
