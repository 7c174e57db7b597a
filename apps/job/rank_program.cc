#include "apps/job/rank_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/base/main_function.h"
#include "src/base/process_environment.h"
#include "src/base/version.h"
#include "src/comm/group/same_job.h"
#include "src/launch/worker/cpu_share.h"
#include "src/launch/worker/gpu_inventory.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

// Whether another rank has already reported `text`, since all ranks report, for
// example, missing data. The ranks of our launcher can use its store before the
// rendezvous.
bool was_said(const std::string& text, const Settings& settings) {
  constexpr std::chrono::seconds kTimeout{1};
  if (!settings.store || settings.world_size.value_or(1) == 1) return false;
  try {
    StoreOptions options{.token = settings.token};
    options.deadline = kTimeout;
    const auto store = open_store(*settings.store, options);
    const std::size_t key = std::hash<std::string>{}(text);
    return store->add(fmt::format("said/{}/{}", settings.job, key), 1,
                      kTimeout) > 1;
  } catch (const Error&) {
    return false;
  }
}

// Prints in one piece, because several ranks may print at once. A rank whose
// error another rank has reported waits for the launcher to end it. If the
// launcher does not, an earlier program of this job reported the error, and
// this rank reports it too.
int complain(const std::string& who, const std::exception& error, int code,
             const Settings& settings) {
  constexpr std::chrono::seconds kToBeEnded{2};
  std::string text = error.what();
  // LibTorch's errors continue with its own stack frames.
  text.resize(std::min(text.size(), text.find("\nException raised from ")));
  if (was_said(text, settings)) wait_for(-1, 0, kToBeEnded);
  std::cerr << who + ": " + text + "\n" << std::flush;
  return code;
}

}  // namespace

int run_rank_program(const RankProgram& program, int count,
                     const char* const* arguments) {
  open_standard_streams();
  // A missing reader and a file that grows too large become errors of the
  // failing call and do not end the process.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  const std::span all(arguments, static_cast<std::size_t>(count));
  if (all.size() == 2 && std::string_view(all[1]) == "--version") {
    std::cout << program.name << ' ' << version() << ", " << program.library
              << std::endl;
    return 0;
  }
  std::string who = program.name;
  RankProgram::Job job;
  Settings settings;
  try {
    settings = Settings::from_environment();
    check_rank_environment(settings);
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
    return complain(who, error, kExitUsage, settings);
  }
  try {
    return job();
  } catch (const DifferentJobs& error) {
    return complain(who, error, kExitUsage, settings);
  } catch (const InvalidArgument& error) {
    return complain(who, error, program.refused, settings);
  } catch (const std::exception& error) {
    return complain(who, error, kExitFailed, settings);
  }
}

}  // namespace lockstep
