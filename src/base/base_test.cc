#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <map>

#include "lockstep/base/buffer.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "src/base/main_function.h"
#include "src/base/round_up.h"
#include "src/base/settings.h"
#include "src/base/suggest.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/lookup_in.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

Settings read(const std::map<std::string, std::string>& variables) {
  return Settings::read(lookup_in(variables));
}

std::string message_of(const std::map<std::string, std::string>& variables) {
  return error_text([&] { read(variables); });
}

TEST(StandardStreams, ThatWereClosedAreAtTheirEndAndRefuseResults) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (int number = 0; number < 3; ++number) ::close(number);
    open_standard_streams();
    char byte = 0;
    const bool at_end = ::read(STDIN_FILENO, &byte, 1) == 0;
    const bool takes_errors = ::write(STDERR_FILENO, "x", 1) == 1;
    const bool refuses = ::write(STDOUT_FILENO, "x", 1) < 0 && errno == EBADF;
    ::_exit(at_end && takes_errors && refuses ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Deadline, NeverHasNoEnd) {
  EXPECT_TRUE(Deadline::never().is_never());
  EXPECT_FALSE(Deadline::never().expired());
  EXPECT_EQ(Deadline::never().poll_milliseconds(), -1);
  EXPECT_TRUE(Deadline(std::chrono::hours(1'000'000'000)).is_never());
}

TEST(Deadline, OfAPastMomentHasExpired) {
  EXPECT_TRUE(Deadline(-1s).expired());
  EXPECT_EQ(Deadline(-1s).poll_milliseconds(), 0);
}

TEST(Float16, EveryValueSurvivesTheWayToFloatAndBack) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const Float16 half{static_cast<std::uint16_t>(bits)};
    const float value = to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_float16(value))));
      continue;
    }
    ASSERT_EQ(to_float16(value).bits, half.bits) << value;
  }
}

TEST(Float16, RoundsToNearestEven) {
  EXPECT_EQ(to_float(to_float16(2049.0f)), 2048.0f);
  EXPECT_EQ(to_float(to_float16(2051.0f)), 2052.0f);
  EXPECT_EQ(to_float(to_float16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(to_float(to_float16(65520.0f))));
}

TEST(BFloat16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(to_float(to_bfloat16(257.0f)), 256.0f);
  EXPECT_EQ(to_float(to_bfloat16(259.0f)), 260.0f);
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::nanf("")))));
  EXPECT_TRUE(std::isinf(to_float(to_bfloat16(INFINITY))));
}

TEST(DataType, SizesAddUp) {
  std::size_t total = 0;
  for (const DataType type : kAllDataTypes) total += size_of(type);
  EXPECT_EQ(total, 4u + 8 + 2 + 2 + 1 + 1 + 4 + 8 + 1);
}

TEST(RoundUpTo, GivesTheLeastMultipleThatIsNotBelow) {
  for (std::size_t bytes = 0; bytes < 200; ++bytes) {
    const std::size_t rounded = round_up_to(48, bytes);
    EXPECT_EQ(rounded % 48, 0u);
    EXPECT_GE(rounded, bytes);
    EXPECT_LT(rounded, bytes + 48);
  }
}

TEST(Settings, ReadsTorchrunsVariables) {
  const Settings settings = read({{"RANK", "3"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(settings.rank, 3);
  EXPECT_EQ(settings.world_size, 4);
  EXPECT_FALSE(settings.local_rank.has_value());
}

// Without a slot of its own a rank would write to that of another.
TEST(Settings, HaveAFileForStepsOnlyWithASlot) {
  EXPECT_EQ(read({{"LOCKSTEP_STEPS_FILE", "/f"}}).steps_file, "");
  const Settings both =
      read({{"LOCKSTEP_STEPS_FILE", "/f"}, {"LOCKSTEP_STEPS_SLOT", "2"}});
  EXPECT_EQ(both.steps_file, "/f");
  EXPECT_EQ(both.steps_slot, 2);
}

TEST(Settings, RefusesWhatIsNoNumberAndNamesTheVariable) {
  for (const char* text : {"", "two", "1.5", "-1", "3x", "99999999999"})
    EXPECT_NE(message_of({{"RANK", text}}).find("RANK is \""),
              std::string::npos)
        << text;
}

// Issue 43, point 17. An empty RANK stays an error, see above.
TEST(Settings, TakeAnEmptyVariableForUnset) {
  const Settings defaults = read({});
  const Settings settings = read({{"LOCKSTEP_BACKEND", ""},
                                  {"LOCKSTEP_WIRE", ""},
                                  {"LOCKSTEP_CHECK", ""},
                                  {"LOCKSTEP_LOG", ""},
                                  {"LOCKSTEP_STORE", ""},
                                  {"LOCKSTEP_TIMEOUT", ""},
                                  {"LOCKSTEP_HEAP_BYTES", ""},
                                  {"LOCKSTEP_SHARE_GPUS", ""},
                                  {"MASTER_ADDR", ""},
                                  {"MASTER_PORT", ""}});
  EXPECT_EQ(settings.backend, defaults.backend);
  EXPECT_EQ(settings.wire, defaults.wire);
  EXPECT_EQ(settings.check, defaults.check);
  EXPECT_EQ(settings.log_level, defaults.log_level);
  EXPECT_EQ(settings.store, std::nullopt);
  EXPECT_EQ(settings.timeout, defaults.timeout);
  EXPECT_EQ(settings.heap_bytes, defaults.heap_bytes);
  EXPECT_FALSE(settings.share_gpus);
  EXPECT_EQ(settings.master_address, std::nullopt);
  EXPECT_EQ(settings.master_port, std::nullopt);
}

TEST(Settings, RefusesARankBeyondTheWorldSize) {
  EXPECT_NE(message_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}})
                .find("RANK must be at most 3"),
            std::string::npos);
}

TEST(Settings, GiveEachRankItsGpuOrLetThemShare) {
  const auto gpu_of = [](const std::string& local_rank, const char* shares,
                         int gpus) {
    return read({{"RANK", local_rank},
                 {"WORLD_SIZE", "8"},
                 {"LOCAL_RANK", local_rank},
                 {"LOCKSTEP_SHARE_GPUS", shares}})
        .gpu_of_rank([gpus] { return gpus; });
  };
  EXPECT_EQ(gpu_of("3", "0", 2), 3);
  EXPECT_EQ(gpu_of("3", "1", 2), 1);
  EXPECT_EQ(gpu_of("3", "1", 8), 3);
  EXPECT_EQ(gpu_of("3", "1", 0), 0);
  EXPECT_THROW(gpu_of("3", "yes", 2), InvalidArgument);
}

TEST(Settings, RefusesANotANumberTimeout) {
  EXPECT_NE(message_of({{"LOCKSTEP_TIMEOUT", "nan"}}).find("LOCKSTEP_TIMEOUT"),
            std::string::npos);
}

TEST(Suggest, NamesTheNearestAndNothingFarAway) {
  constexpr std::array<std::string_view, 3> kKnown{"cnn", "convnet", "mlp"};
  EXPECT_EQ(nearest_name("cnm", kKnown), "cnn");
  EXPECT_EQ(nearest_name("conv-net", kKnown), "convnet");
  EXPECT_EQ(nearest_name("transformer", kKnown), "");
  EXPECT_EQ(nearest_name("con", kKnown), "convnet");
  constexpr std::array<std::string_view, 4> kFlags{
      "--np", "--nproc-per-node-and-more", "--nproc-per-node", "--no-fold"};
  EXPECT_EQ(nearest_name("--nproc", kFlags), "--nproc-per-node");
  EXPECT_EQ(nearest_name("--no", kFlags), "--np");  // too few letters
  EXPECT_EQ(unknown_name("model", "cnm", kKnown),
            "unknown model \"cnm\": did you mean \"cnn\"? Known: cnn, convnet, "
            "mlp");
}

TEST(Check, ThrowsWithPlaceAndCondition) {
  try {
    LOCKSTEP_CHECK(1 + 1 == 3, "arithmetic");
    FAIL() << "the check passed";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("1 + 1 == 3"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
