#include "apps/checkpoint/checkpoint_command.h"

#include <CLI/CLI.hpp>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "apps/job/companion.h"
#include "apps/job/flags.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr Companion kCheckpoint{
    .name = "lockstep-checkpoint",
    .variable = "LOCKSTEP_CHECKPOINT_PROGRAM",
    .remedy = "this build has no LibTorch; build with it (./dev build)"};

constexpr std::array<std::string_view, 2> kActions{"merge", "show"};

}  // namespace

void add_checkpoint_options(CLI::App& command, CheckpointOptions& options) {
  command.footer(
      "  lockstep checkpoint show runs/1/checkpoint-000700\n"
      "  lockstep checkpoint merge runs/1/checkpoint-000700 m.safetensors");
  command
      .add_option("ACTION", options.action,
                  "merge: write the checkpoint to one file; show: print what "
                  "is in it, and read all of it to check it")
      ->check(one_of("action", kActions))
      ->type_name("");
  command
      .add_option(
          "SET", options.set,
          "The folder of a checkpoint in shards, as --checkpoint-format "
          "sharded writes it")
      ->type_name("");
  command
      .add_option("OUT", options.output,
                  "Of merge: the safetensors file to write")
      ->type_name("");
}

void check_checkpoint_options(const CheckpointOptions& options) {
  const bool merges = options.action == "merge";
  if (options.action.empty() || options.set.empty() ||
      merges == options.output.empty())
    throw InvalidArgument(
        "checkpoint needs an action and what it takes: lockstep checkpoint "
        "merge SET OUT.safetensors, or lockstep checkpoint show SET");
  if (!merges) return;
  if (!options.output.ends_with(".safetensors"))
    throw InvalidArgument("the file to merge into is \"" + options.output +
                          "\", but its name must end in .safetensors");
  const std::filesystem::path output = options.output;
  std::error_code ignored;
  if (std::filesystem::equivalent(
          output.has_parent_path() ? output.parent_path() : ".", options.set,
          ignored))
    throw InvalidArgument("the file to merge into, \"" + options.output +
                          "\", is in the folder of the shards\n  next:    "
                          "name a file in another folder");
  check_file_to_write("OUT", options.output);
}

void run_checkpoint(const CheckpointOptions& options,
                    const EnvironmentLookup& lookup) {
  std::vector<std::string> command{require_companion(kCheckpoint, lookup),
                                   options.action, options.set};
  if (!options.output.empty()) command.push_back(options.output);
  become(command);
}

}  // namespace lockstep
