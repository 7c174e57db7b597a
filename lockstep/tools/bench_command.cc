#include "lockstep/tools/bench_command.h"

#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "lockstep/base/rank_environment.h"
#include "lockstep/tools/companion.h"
#include "lockstep/tools/job.h"

namespace lockstep {
namespace {

constexpr Companion kBench{.name = "lockstep-bench",
                           .variable = "LOCKSTEP_BENCH_PROGRAM"};

// In place of this process, so that launchers see their rank itself.
[[noreturn]] void become(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& word : command)
    words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(words.front(), words.data());
  throw SystemError("cannot start " + command.front(), errno);
}

}  // namespace

int run_bench(const BenchRequest& request, const EnvironmentLookup& lookup) {
  LaunchOptions launch;
  launch.command = {require_companion(kBench, lookup)};
  launch.command.insert(launch.command.end(), request.arguments.begin(),
                        request.arguments.end());
  if (read_rank_environment(lookup).launcher != StartedBy::kNone)
    become(launch.command);
  launch.job.workers = request.options.ranks.value();
  launch.tags = OutputTags::kNone;
  apply(request.launch, launch);
  return run_job(std::move(launch), lookup);
}

}  // namespace lockstep
