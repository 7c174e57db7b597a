#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <filesystem>
#include <thread>
#include <vector>

#include "apps/doctor/doctor_findings.h"
#include "lockstep/base/error.h"
#include "src/base/first_line.h"
#include "src/base/name_table.h"
#include "src/base/transport_names.h"
#include "src/comm/group/group_core.h"
#include "src/comm/memory/heap.h"
#include "src/comm/nccl/gpu_plugin.h"
#include "src/comm/wire/transport_plugin.h"
#include "src/launch/worker/find_program.h"
#include "src/net/process_handle.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kTimeout{5};

// The sum that a rank of two gets when both add their rank + 1.
std::vector<float> add_ranks(const std::shared_ptr<Store>& store, int rank) {
  Settings settings;
  settings.rendezvous_timeout = kTimeout;
  settings.heap_bytes = std::size_t{1} << 20;
  const auto group =
      make_group("shm", {.name = "doctor", .rank = rank, .size = 2},
                 std::make_shared<World>(store, settings), kTimeout);
  std::vector<float> numbers(1 << 14, static_cast<float>(rank + 1));
  group->all_reduce(view(numbers), ReduceOp::kSum).wait();
  group->barrier().wait();
  return numbers;
}

// The first line of an error's message.
std::string why_it_failed(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return first_line(known.what());
  } catch (...) {
    return "an unknown error";
  }
}

// Without a GPU, the missing GPU backend is not a deficiency.
bool has_nvidia_driver() {
  std::error_code ignored;
  return std::filesystem::exists("/proc/driver/nvidia/version", ignored);
}

Finding examine_gpus(const Settings& settings) {
  const GpuStatus status = gpu_status(settings);
  Finding finding{.topic = fmt::format("backend {}", kGpuPlugin),
                  .text = "between GPUs; "};
  if (status.devices > 0) {
    finding.text += status.detail;
    return finding;
  }
  finding.health = Health::kLimited;
  if (status.plugin) {
    finding.text += status.detail;
    finding.next = status.next;
  } else if (has_nvidia_driver()) {
    finding.text += "not here, though this machine has an NVIDIA driver";
    finding.next = fmt::format("{}; {}", status.detail, status.next);
  } else {
    finding.text += "not here, and of no use without an NVIDIA driver";
  }
  return finding;
}

}  // namespace

Finding try_shared_memory() {
  Finding finding{.topic = "backend shm",
                  .text = "two ranks added their numbers through it"};
  const auto store = open_store("memory:");
  std::array<std::exception_ptr, 2> errors;
  std::array<std::thread, 2> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks[static_cast<std::size_t>(rank)] = std::thread([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      try {
        const auto numbers = add_ranks(store, rank);
        if (std::ranges::count(numbers, 3.0F) !=
            static_cast<std::ptrdiff_t>(numbers.size()))
          throw Error("the sum of two ranks was wrong");
      } catch (...) {
        errors[at] = std::current_exception();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const auto& error : errors)
    if (error) {
      finding.health = Health::kBad;
      finding.text = why_it_failed(error);
      finding.next =
          "the ranks of one host cannot work together; see the limits below, "
          "and whether memfd_create and Unix sockets are allowed here (a "
          "seccomp filter?)";
    }
  return finding;
}

Finding try_heap(const Settings& settings) {
  Finding finding{.topic = "shared heap"};
  const double gibibytes =
      static_cast<double>(settings.heap_bytes) / static_cast<double>(1 << 30);
  if (settings.heap_bytes == 0) {
    finding.health = Health::kLimited;
    finding.text = "turned off by LOCKSTEP_HEAP_BYTES=0: data is copied";
    return finding;
  }
  try {
    Heap::create({.bytes = settings.heap_bytes});
    finding.text = fmt::format(
        "{:.3g} GiB of address space per rank are available", gibibytes);
  } catch (const SystemError& error) {
    finding.health = Health::kLimited;
    finding.text = error.what();
    finding.next =
        "ranks copy their data instead; raise ulimit -v and ulimit -f, or set "
        "LOCKSTEP_HEAP_BYTES to less";
  }
  return finding;
}

Finding examine_process_handles() {
  Finding finding{.topic = "process handles",
                  .text = "a rank's death is seen at once, by pidfd"};
  try {
    open_process(::getpid());
  } catch (const SystemError& error) {
    finding.health = Health::kLimited;
    finding.text =
        fmt::format("a rank's death is seen at once, by the end of a pipe: {}",
                    error.what());
    finding.next = "Linux 5.3 or newer has pidfds";
  }
  return finding;
}

std::vector<Finding> examine_plugins(const Settings& settings) {
  std::vector<Finding> findings;
  for (const PluginStatus& plugin : plugin_status(settings)) {
    Finding finding{
        .topic = fmt::format("backend {}", plugin.name),
        .text = fmt::format(
            "{}; ", row_named(kTransports, "plug-in", plugin.name).use)};
    if (plugin.found) {
      finding.text += plugin.detail;
    } else {
      finding.health = Health::kLimited;
      finding.text += "not here";
      finding.next = plugin.detail;
    }
    findings.push_back(std::move(finding));
  }
  findings.push_back(examine_gpus(settings));
  return findings;
}

Finding examine_mpi_launchers(const EnvironmentLookup& lookup) {
  Finding finding{.topic = "mpirun, srun"};
  const std::string path = lookup("PATH").value_or("");
  for (const char* name : {"mpirun", "srun"}) try {
      const std::string program = find_program(name, path);
      finding.text += (finding.text.empty() ? "" : ", ") + program;
    } catch (const Error&) {
      continue;  // not present
    }
  if (finding.text.empty()) {
    finding.health = Health::kLimited;
    finding.text = "neither: the backend mpi cannot be used";
    finding.next = "apt-get install openmpi-bin; all else works without";
  }
  return finding;
}

}  // namespace lockstep
