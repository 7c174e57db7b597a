#include "lockstep/tools/rank_program.h"

#include <csignal>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/process_environment.h"
#include "lockstep/base/version.h"
#include "lockstep/launch/cpu_share.h"
#include "lockstep/launch/gpu_inventory.h"

namespace lockstep {
namespace {

// In one piece, since all ranks may do it at once.
int complain(const std::string& who, const std::exception& error, int code) {
  std::cerr << who + ": " + error.what() + "\n" << std::flush;
  return code;
}

}  // namespace

int run_rank_program(const RankProgram& program, int count,
                     const char* const* arguments) {
  // A reader that is gone and a file that grows too large are errors of the
  // call that meets them, not the end of the process.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  const std::span all(arguments, static_cast<std::size_t>(count));
  if (all.size() == 2 && std::string_view(all[1]) == "--version") {
    std::cout << program.name << ' ' << version() << ", " << program.library
              << std::endl;
    return 0;
  }
  std::string who = program.name;
  std::function<void()> job;
  try {
    const Settings settings = Settings::from_environment();
    const int ranks = settings.world_size.value_or(1);
    if (ranks > 1)
      who += " on rank " + std::to_string(settings.rank.value_or(0)) + " of " +
             std::to_string(ranks);
    job = program.prepare(
        all.subspan(all.empty() ? 0 : 1), settings,
        {.cores = usable_cores(),
         .world_size = ranks,
         .lookup = environment_variable,
         .gpus = [] { return visible_gpus(environment_variable); }});
  } catch (const std::exception& error) {
    return complain(who, error, kUsageError);
  }
  try {
    job();
  } catch (const InvalidArgument& error) {
    return complain(who, error, program.refused);
  } catch (const std::exception& error) {
    return complain(who, error, kFailed);
  }
  return 0;
}

}  // namespace lockstep
