#include "src/launch/worker/worker_environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "lockstep/base/error.h"
#include "src/base/rank_environment.h"

namespace lockstep {
namespace {

constexpr std::string_view kTorchElastic = "TORCHELASTIC_";

std::string_view name_of(std::string_view variable) {
  return variable.substr(0, variable.find('='));
}

bool has(std::span<const std::string> variables, std::string_view name) {
  return std::any_of(
      variables.begin(), variables.end(),
      [&](const std::string& variable) { return name_of(variable) == name; });
}

void remove(std::vector<std::string>& variables, std::string_view name) {
  std::erase_if(variables, [&](const std::string& variable) {
    return name_of(variable) == name;
  });
}

void add_threads(std::vector<std::string>& variables,
                 const JobEnvironment& job) {
  constexpr std::string_view kName = "OMP_NUM_THREADS";
  if (job.threads) {
    remove(variables, kName);
    variables.push_back(fmt::format("{}={}", kName, *job.threads));
  } else if (job.workers > 1 && !has(variables, kName)) {
    variables.push_back(fmt::format("{}=1", kName));
  }
}

// The entries of CUDA_VISIBLE_DEVICES, without blanks; nothing where it is not
// set.
std::optional<std::vector<std::string>> visible_devices(
    const std::vector<std::string>& variables) {
  constexpr std::string_view kName = "CUDA_VISIBLE_DEVICES";
  const auto found = std::ranges::find(variables, kName, name_of);
  if (found == variables.end()) return std::nullopt;
  std::vector<std::string> devices;
  std::istringstream list(found->substr(kName.size() + 1));
  for (std::string device; std::getline(list, device, ',');) {
    std::erase(device, ' ');
    if (device == "-1") break;  // CUDA ends the list there
    devices.push_back(device);
  }
  return devices;
}

void add_local_rank(std::vector<std::string>& variables,
                    const JobEnvironment& job, int local_rank) {
  const int shown = job.virtual_local_rank ? 0 : local_rank;
  variables.push_back(fmt::format("LOCAL_RANK={}", shown));
  const auto devices = visible_devices(variables);
  // Without GPUs each of them keeps none.
  if (!job.virtual_local_rank || (devices && devices->empty())) return;
  if (devices && std::ssize(*devices) < job.workers)
    throw InvalidArgument(fmt::format(
        "--virtual-local-rank gives each of {} workers a GPU, but "
        "CUDA_VISIBLE_DEVICES names {}: start fewer workers, or name more GPUs",
        job.workers, devices->size()));
  const std::string device =
      devices ? devices->at(static_cast<std::size_t>(local_rank))
              : std::to_string(local_rank);
  remove(variables, "CUDA_VISIBLE_DEVICES");
  variables.push_back("CUDA_VISIBLE_DEVICES=" + device);
}

std::string notes_file(const JobEnvironment& job, const char* start, int rank) {
  if (job.notes_directory.empty() || !job.workers_are_ranks) return "";
  return fmt::format("{}/{}{}.json", job.notes_directory, start, rank);
}

// What torchrun tells its workers besides their ranks.
void add_torchruns(std::vector<std::string>& variables,
                   const JobEnvironment& job, int rank) {
  const auto set = [&](std::string_view name, const auto& value) {
    variables.push_back(fmt::format("{}{}={}", kTorchElastic, name, value));
  };
  set("RESTART_COUNT", job.restarts);
  set("MAX_RESTARTS", job.max_restarts);
  set("RUN_ID", job.run_id);
  // Rank 0 serves PyTorch's store at MASTER_PORT.
  set("USE_AGENT_STORE", "False");
  const std::string file = exception_file(job, rank);
  if (!file.empty()) set("ERROR_FILE", file);
  constexpr std::string_view kNccl = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
  if (!has(variables, kNccl)) variables.push_back(fmt::format("{}=1", kNccl));
}

}  // namespace

std::string exception_file(const JobEnvironment& job, int rank) {
  return notes_file(job, kExceptionStart, rank);
}

std::string fault_file(const JobEnvironment& job, int rank) {
  return notes_file(job, kFaultStart, rank);
}

int world_size_of(const JobEnvironment& job) {
  return job.world_size == 0 ? job.workers : job.world_size;
}

void prepend_library_folder(std::vector<std::string>& variables,
                            const std::string& folder) {
  if (folder.empty()) return;
  const std::string name = "LD_LIBRARY_PATH=";
  for (std::string& variable : variables) {
    if (!variable.starts_with(name)) continue;
    const std::string_view rest =
        std::string_view(variable).substr(name.size());
    variable =
        fmt::format("{}{}{}{}", name, folder, rest.empty() ? "" : ":", rest);
    return;
  }
  variables.push_back(name + folder);
}

std::vector<std::string> worker_environment(
    std::span<const std::string> inherited, const JobEnvironment& job,
    int local_rank) {
  std::vector<std::string> variables;
  for (const std::string& variable : inherited)
    if (!is_set_per_job(name_of(variable))) variables.push_back(variable);
  const auto set = [&](std::string_view name, const auto& value) {
    variables.push_back(fmt::format("{}={}", name, value));
  };
  // Python and C++ buffer output to a pipe until 4 or 8 KiB have accumulated.
  if (!has(variables, "PYTHONUNBUFFERED")) set("PYTHONUNBUFFERED", 1);
  if (!has(variables, "LOCKSTEP_LINE_BUFFERED"))
    set("LOCKSTEP_LINE_BUFFERED", 1);
  if (!has(variables, "LOCKSTEP_BACKTRACE")) set("LOCKSTEP_BACKTRACE", 1);
  prepend_library_folder(variables, job.library_folder);
  if (!job.workers_are_ranks) return variables;
  const int rank = job.first_rank + local_rank;
  set("RANK", rank);
  add_local_rank(variables, job, local_rank);
  set("WORLD_SIZE", world_size_of(job));
  set("LOCAL_WORLD_SIZE", job.workers);
  set("GROUP_RANK", job.group_rank);
  set("GROUP_WORLD_SIZE", job.group_world_size);
  set("ROLE_RANK", rank);
  set("ROLE_WORLD_SIZE", world_size_of(job));
  set("ROLE_NAME", job.role);
  set("MASTER_ADDR", job.master_address);
  set("MASTER_PORT", job.master_port);
  add_torchruns(variables, job, rank);
  if (!job.store_url.empty()) set("LOCKSTEP_STORE", job.store_url);
  if (!job.token.empty()) set("LOCKSTEP_TOKEN", job.token);
  if (const auto file = fault_file(job, rank); !file.empty())
    set("LOCKSTEP_FAULT_FILE", file);
  if (!job.steps_file.empty()) {
    set("LOCKSTEP_STEPS_FILE", job.steps_file);
    set("LOCKSTEP_STEPS_SLOT", local_rank);
  }
  if (!job.dump_directory.empty()) {
    remove(variables, "LOCKSTEP_DUMP_DIR");
    set("LOCKSTEP_DUMP_DIR", job.dump_directory);
  }
  constexpr std::string_view kPlugins = "LOCKSTEP_PLUGIN_PATH";
  if (!job.plugin_folder.empty() && !has(variables, kPlugins))
    set(kPlugins, job.plugin_folder);
  add_threads(variables, job);
  return variables;
}

std::vector<std::string> current_environment() {
  std::vector<std::string> variables;
  for (char** variable = ::environ; variable != nullptr && *variable != nullptr;
       ++variable)
    variables.emplace_back(*variable);
  return variables;
}

}  // namespace lockstep
