#include "src/comm/nccl/gpu_plugin.h"

#include <fmt/format.h>

#include <atomic>

#include "lockstep/base/error.h"
#include "src/comm/rendezvous/plugin.h"

namespace lockstep {
namespace {

std::atomic<const LockstepGpuTable*> used_instead{nullptr};

// Precedes the next step in an outcome's text.
constexpr std::string_view kNext = "\n  next:    ";

PluginSearch search_for_plugin(const Settings& settings) {
  return {kGpuPlugin,
          {.entry = LOCKSTEP_GPU_ENTRY,
           .call = call_entry<LockstepGpuTable>,
           .version = kGpuTableVersion},
          settings};
}

std::string next_step(std::string_view reason) {
  if (reason.find("libnccl.so.2: ") != std::string_view::npos)
    return fmt::format(
        "put NCCL's libnccl.so.2 beside {}, or its folder into LD_LIBRARY_PATH",
        plugin_file(kGpuPlugin));
  return fmt::format(
      "build Lockstep with ./dev build --cuda where a CUDA toolkit is, or name "
      "the folder of {} in LOCKSTEP_PLUGIN_PATH",
      plugin_file(kGpuPlugin));
}

void count_devices(const LockstepGpuTable& table, GpuStatus& status) {
  LockstepGpuOutcome outcome{};
  if (table.device_count(&status.devices, &outcome) == kGpuDone) {
    status.detail =
        fmt::format("{} GPU{}", status.devices, status.devices == 1 ? "" : "s");
    return;
  }
  status.devices = 0;
  const std::string text = outcome.text;
  const std::size_t next = text.find(kNext);
  status.detail = text.substr(0, next);
  if (next != std::string::npos) status.next = text.substr(next + kNext.size());
}

}  // namespace

void use_gpu_table(const LockstepGpuTable* table) { used_instead.store(table); }

const LockstepGpuTable& load_gpu_table(const Settings& settings) {
  if (const LockstepGpuTable* const table = used_instead.load()) return *table;
  const PluginSearch search = search_for_plugin(settings);
  if (search.table() == nullptr)
    throw InvalidArgument(fmt::format(
        "the backend \"{}\" is not available: {}\n  next:    {}; `lockstep "
        "doctor` shows what this machine has",
        kGpuPlugin, search.reason(), next_step(search.reason())));
  return *static_cast<const LockstepGpuTable*>(search.table());
}

GpuStatus gpu_status(const Settings& settings) {
  const PluginSearch search = search_for_plugin(settings);
  if (search.table() == nullptr)
    return {.detail = search.reason(), .next = next_step(search.reason())};
  const auto& table = *static_cast<const LockstepGpuTable*>(search.table());
  GpuStatus status{.plugin = true};
  count_devices(table, status);
  status.detail +=
      fmt::format("; {}, {}", table.libraries == nullptr ? "" : table.libraries,
                  search.file());
  return status;
}

}  // namespace lockstep
