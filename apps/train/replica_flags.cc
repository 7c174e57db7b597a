#include "apps/train/replica_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/job/flags.h"
#include "lockstep/base/error.h"

namespace lockstep {

void add_replica_flags(CLI::App& command, TrainOptions& options) {
  command.add_flag("--sync-bn", options.sync_batch_norm,
                   "Let batch normalization see the samples of all ranks");
  command
      .add_flag("--check-consistency{3}", options.checks.consistency_steps,
                "Show for the first 3 steps, or =N, which values agree on all "
                "ranks; end the run where a difference is wrong")
      ->check(whole_number(1));
  command
      .add_option_function<std::string>(
          "--show-values",
          [&options](const std::string& list) {
            options.checks.show = entries_of(list);
          },
          "Parameters whose first values, and gradients, "
          "--check-consistency shows: conv1.weight,fc.bias")
      ->check(list_of([](const std::string& name) {
        return name.empty() ? "\"\" is not the name of a parameter" : "";
      }))
      ->type_name("NAME,NAME,...");
  command
      .add_option("--fingerprint-every", options.checks.fingerprint_every,
                  "Compare a hash of all weights over the ranks every N steps; "
                  "end the run where they differ")
      ->check(whole_number(1))
      ->type_name("N");
}

void check_replica_flags(const TrainOptions& options) {
  if (options.sync_batch_norm && !known_model(options.model).residual)
    throw InvalidArgument(fmt::format(
        "--sync-bn is for --model {}; {} has no batch normalization",
        list_names(kModels, "and",
                   [](const KnownModel& known) { return known.residual; }),
        options.model));
  if (options.sync_batch_norm && options.logical_shards)
    throw InvalidArgument(
        "--sync-bn would make the bits of --logical-shards depend on the "
        "number of ranks: leave out one of the two");
  if (!options.checks.show.empty() && options.checks.consistency_steps == 0)
    throw InvalidArgument(
        "--show-values is for --check-consistency: give that too");
  if (options.checks.any() && options.hook == "post-local-sgd")
    throw InvalidArgument(fmt::format(
        "{} is not for --hook post-local-sgd, with which ranks "
        "diverge on purpose: leave out one of the two",
        options.checks.consistency_steps > 0 ? "--check-consistency"
                                             : "--fingerprint-every"));
}

}  // namespace lockstep
