#include "apps/status/status_command.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/job/host_memory.h"
#include "src/base/version.h"
#include "src/launch/output/terminal_text.h"
#include "src/launch/worker/cpu_share.h"
#include "src/store/host_address.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGibibyte = 1 << 30;

// "" for a process that has ended or is not visible to this one.
std::string program_of(unsigned pid) {
  std::ifstream stream(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(stream, name);
  return name;
}

std::string memory_text(const std::optional<std::uint64_t>& bytes) {
  if (!bytes) return "memory not known";
  return fmt::format("{:.1f} GiB", static_cast<double>(*bytes) / kGibibyte);
}

// How much of the host's memory is in use.
std::string memory_text(const HostStatus& status) {
  if (!status.total_bytes) return "not known";
  const auto gibibytes = [](std::uint64_t bytes) {
    return static_cast<double>(bytes) / kGibibyte;
  };
  if (!status.available_bytes)
    return fmt::format("{:.1f} GiB, use not known",
                       gibibytes(*status.total_bytes));
  return fmt::format("{:.1f} of {:.1f} GiB used",
                     gibibytes(*status.total_bytes - *status.available_bytes),
                     gibibytes(*status.total_bytes));
}

std::string program_text(const HostStatus& status, unsigned pid) {
  const auto program = status.programs.find(pid);
  return program == status.programs.end() ? "" : program->second;
}

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

Json to_object(const GpuState& gpu, const HostStatus& status) {
  Json object{{"index", gpu.index},
              {"name", gpu.name},
              {"total_bytes", gpu.total_bytes},
              {"used_bytes", gpu.used_bytes},
              {"busy_percent", or_null(gpu.busy_percent)},
              {"celsius", or_null(gpu.celsius)},
              {"processes", Json::array()}};
  for (const GpuProcess& process : gpu.processes)
    object["processes"].push_back(
        {{"pid", process.pid},
         {"program", program_text(status, process.pid)},
         {"bytes", or_null(process.bytes)}});
  return object;
}

}  // namespace

HostStatus look_at_host(const EnvironmentLookup& lookup,
                        const StatusOptions& options) {
  HostStatus status{.host = own_host_name(),
                    .cores = usable_cores(),
                    .total_bytes = total_memory(),
                    .available_bytes = available_memory(),
                    .gpus = look_at_gpus(),
                    .jobs = options.job ? look_at_job(lookup, *options.job)
                                        : look_at_jobs(lookup, options.whose)};
  ::getloadavg(&status.load, 1);
  for (const GpuState& gpu : status.gpus.gpus)
    for (const GpuProcess& process : gpu.processes)
      if (auto program = program_of(process.pid); !program.empty())
        status.programs[process.pid] = std::move(program);
  return status;
}

std::string to_text(const HostStatus& status) {
  std::string text = fmt::format(
      "{}\n"
      "  cores   {}, load {:.1f}\n"
      "  memory  {}\n",
      status.host, status.cores, status.load, memory_text(status));
  for (const GpuState& gpu : status.gpus.gpus) {
    text += fmt::format("  GPU {:<3} {}\n", gpu.index, describe(gpu));
    for (const GpuProcess& process : gpu.processes)
      text += fmt::format("            {:>8}  {:<16} {}\n", process.pid,
                          safe_for_terminal(program_text(status, process.pid)),
                          memory_text(process.bytes));
  }
  if (!status.gpus.problem.empty())
    text += fmt::format("  GPUs    none: {}\n", status.gpus.problem);
  else if (status.gpus.gpus.empty())
    text += "  GPUs    none\n";
  return text + to_text(status.jobs);
}

std::string to_json(const HostStatus& status) {
  Json object{{"version", version()},
              {"host", status.host},
              {"cores", status.cores},
              {"load", status.load},
              {"total_bytes", or_null(status.total_bytes)},
              {"available_bytes", or_null(status.available_bytes)},
              {"driver", status.gpus.driver},
              {"gpus", Json::array()},
              {"problem", status.gpus.problem}};
  for (const GpuState& gpu : status.gpus.gpus)
    object["gpus"].push_back(to_object(gpu, status));
  object["jobs"] = to_json_list(status.jobs.jobs);
  object["job_problems"] = status.jobs.problems;
  return object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep
