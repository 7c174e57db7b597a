// The flags of `lockstep train` that are options of the trainer: a row per
// flag.
//
// The row is all that is said of a flag. The command adds it to its parser,
// with the help and the check; ranks compare its value before they train; and a
// checkpoint records it if a resumed run must have the same. Options that
// exclude each other are in apps/options/training_conflicts.h.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "apps/options/flag_checks.h"
#include "apps/options/training_options.h"

namespace lockstep {

// Where a flag's value goes; a list is separated by commas.
using FlagTarget =
    std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*,
                 std::string*, std::filesystem::path*, std::optional<int>*,
                 std::optional<std::int64_t>*, std::optional<double>*,
                 std::vector<std::int64_t>*, std::vector<std::string>*>;

// The headings under which the help lists the flags.
namespace flag_groups {
inline constexpr const char* kRun = "Run";
inline constexpr const char* kData = "Data";
inline constexpr const char* kModel = "Model";
inline constexpr const char* kSteps = "Steps and batches";
inline constexpr const char* kOptimizer = "Optimizer and learning rate";
inline constexpr const char* kRanks = "How ranks compute and communicate";
inline constexpr const char* kCheckpoints = "Checkpoints";
inline constexpr const char* kChecks = "Checks";
}  // namespace flag_groups

struct TrainingFlag {
  std::string name{};  // as CLI11 takes it: "--lr", "-o,--output"
  FlagTarget target{};
  std::string help{};
  const char* group = nullptr;  // of flag_groups
  FlagCheck check{};            // none: any text of the target's type
  std::string type_name{};      // in the help; empty: the type's
  // What the flag alone, without a value, means; empty: it needs one.
  std::string alone{};
  // Whether the help names the default: not if the text does, or if it says
  // that something is off.
  bool tells_default = true;

  // What ranks compare and checkpoints record, if that is not the value itself;
  // of a path, which only rank 0 uses, that is whether there is one.
  std::optional<std::string> recorded{};
  std::string unset = "not given";  // that of an optional without a value
  // Its name in a checkpoint that a resumed run must match; empty: it may
  // change between two parts of a run.
  std::string in_checkpoint{};
  // What older checkpoints, which lack it, were made with.
  std::optional<std::string> in_older{};
  // Whether the ranks compare instead what it does to the data.
  bool shows_in_data = false;
};

// The rows, whose targets are members of `options`.
std::vector<TrainingFlag> training_flags(TrainerOptions& options);

// Some of them, for commands that take no others.
TrainingFlag model_flag(std::string& model);
std::vector<TrainingFlag> compute_flags(ComputeOptions& options);

// The flag's long name, "--output", and its value as ranks compare it.
std::string long_name(const TrainingFlag& flag);
std::string recorded_value(const TrainingFlag& flag);

}  // namespace lockstep
