#include "lockstep/comm/wire/transport_plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/comm/nccl/gpu_plugin.h"
#include "lockstep/comm/plugin.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOCKSTEP_SANITIZED
#elif defined(__has_feature)  // clang's way of saying it
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LOCKSTEP_SANITIZED
#endif
#endif

namespace lockstep {
namespace {

struct KnownPlugin {
  const char* name;
  const char* packages;  // that its build needs
};

constexpr std::array<KnownPlugin, 2> kPlugins{{
    {"gloo", "libgloo-dev"},
    {"mpi", "libopenmpi-dev and openmpi-bin"},
}};

constexpr const char* packages_of(std::string_view name) {
  for (const KnownPlugin& plugin : kPlugins)
    if (name == plugin.name) return plugin.packages;
  return "its library";
}

// Gloo's names are also those of the Gloo inside LibTorch, so that its plug-in
// must look at its own library first. The sanitizers forbid that.
int flags_for([[maybe_unused]] std::string_view name) {
#if !defined(LOCKSTEP_SANITIZED)
  if (name == "gloo") return RTLD_DEEPBIND;
#endif
  return 0;
}

PluginSearch search_for(std::string_view name, const Settings& settings) {
  return {name,
          {.entry = LOCKSTEP_TRANSPORT_ENTRY,
           .version = kTransportVersion,
           .flags = flags_for(name)},
          settings};
}

std::string next_step(std::string_view name) {
  return fmt::format(
      "install {} and build Lockstep anew, or name the folder of {} in "
      "LOCKSTEP_PLUGIN_PATH",
      packages_of(name), plugin_file(name));
}

}  // namespace

const LockstepTransportTable& load_transport(const std::string& name,
                                             const Settings& settings) {
  const PluginSearch search = search_for(name, settings);
  if (search.table() == nullptr)
    throw InvalidArgument(fmt::format(
        "the backend \"{}\" is not available: {}\n  next:    {}; `lockstep "
        "doctor` shows what this machine has",
        name, search.reason(), next_step(name)));
  return *static_cast<const LockstepTransportTable*>(search.table());
}

std::vector<PluginStatus> plugin_status(const Settings& settings) {
  std::vector<PluginStatus> all;
  for (const KnownPlugin& plugin : kPlugins) {
    PluginStatus status{.name = plugin.name};
    const PluginSearch search = search_for(plugin.name, settings);
    status.found = search.table() != nullptr;
    status.detail = status.found ? search.file()
                                 : fmt::format("{}; {}", search.reason(),
                                               next_step(plugin.name));
    all.push_back(std::move(status));
  }
  return all;
}

std::string plugin_folder() {
  std::vector<std::string_view> names{kGpuPlugin};
  for (const KnownPlugin& plugin : kPlugins) names.push_back(plugin.name);
  return folder_of_plugins(names);
}

}  // namespace lockstep
