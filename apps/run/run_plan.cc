#include "apps/run/run_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "src/base/report_text.h"
#include "src/launch/worker/find_program.h"
#include "src/launch/worker/placement.h"

namespace lockstep {
namespace {

std::string value_of(std::span<const std::string> environment,
                     std::string_view name) {
  for (const std::string& variable : environment)
    if (variable.size() > name.size() && variable.starts_with(name) &&
        variable[name.size()] == '=')
      return variable.substr(name.size() + 1);
  return "all";
}

}  // namespace

std::string describe_plan(const LaunchOptions& launch, bool is_only_host) {
  std::vector<std::vector<std::string>> rows{
      {is_only_host ? "rank" : "local rank", "cores", "compute threads",
       "CUDA_VISIBLE_DEVICES"}};
  const int workers = launch.job.workers;
  const auto shares = place_workers(launch.binding, workers);
  for (int local = 0; local < workers; ++local) {
    const auto environment =
        worker_environment(launch.environment, launch.job, local);
    rows.push_back({std::to_string(local),
                    shares.empty()
                        ? "any"
                        : ranges_in(shares[static_cast<std::size_t>(local)]),
                    value_of(environment, "OMP_NUM_THREADS"),
                    value_of(environment, "CUDA_VISIBLE_DEVICES")});
  }
  const std::string program = find_program(
      launch.command.front(), value_of(launch.environment, "PATH"));
  std::vector<std::string> command = launch.command;
  command.front() = program;
  return fmt::format("command: {}\n{}", fmt::join(command, " "),
                     aligned_table(rows, {.left_aligned = 4}));
}

std::string describe_hosts(std::span<const HostSlots> hosts) {
  std::vector<std::vector<std::string>> rows{{"node rank", "host", "ranks"}};
  for (int rank = 0; const HostSlots& host : hosts)
    rows.push_back(
        {std::to_string(rank++), host.host,
         host.slots == 0 ? "as -n says there" : std::to_string(host.slots)});
  return aligned_table(rows, {.left_aligned = 3});
}

}  // namespace lockstep
