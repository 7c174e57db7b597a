#include "src/comm/wire/transport_plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string_view>

#include "lockstep/base/error.h"
#include "src/base/sanitized.h"
#include "src/base/transport_names.h"
#include "src/comm/rendezvous/plugin.h"

namespace lockstep {
namespace {

// LibTorch contains a Gloo with the same symbols, so the plug-in must resolve
// symbols in its own library first. The sanitizers forbid that.
int flags_for(std::string_view name) {
  return name == "gloo" && !kSanitized ? RTLD_DEEPBIND : 0;
}

// The file whose malloc this process uses instead of glibc's; "" if it uses
// glibc's.
std::string preloaded_malloc() {
  const void* const used = ::dlsym(RTLD_DEFAULT, "malloc");
  void* const libc = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (libc == nullptr) return "";
  const void* const own = ::dlsym(libc, "malloc");
  ::dlclose(libc);
  Dl_info info{};
  if (used == own || used == nullptr || ::dladdr(used, &info) == 0) return "";
  return info.dli_fname;
}

// Why an existing plug-in must not be loaded into this process; "" if it may. A
// library that resolves symbols in its own dependencies first finds glibc's
// free() there, and passes it memory of the process's malloc: glibc ends the
// process.
std::string conflict_of(std::string_view name) {
  if ((flags_for(name) & RTLD_DEEPBIND) == 0) return "";
  const std::string file = preloaded_malloc();
  if (file.empty()) return "";
  return fmt::format(
      "this process takes its malloc from {}, with which {} cannot work: its "
      "library would free such memory with glibc's free()",
      file, plugin_file(name));
}

constexpr const char* kAvoidMalloc =
    "start all ranks without that malloc (LD_PRELOAD), or set "
    "LOCKSTEP_WIRE=mpi; ranks on one host need no plug-in "
    "(LOCKSTEP_BACKEND=shm)";

PluginSearch search_for(std::string_view name, const Settings& settings) {
  return {name,
          {.entry = LOCKSTEP_TRANSPORT_ENTRY,
           .call = call_entry<LockstepTransportTable>,
           .version = kTransportVersion,
           .flags = flags_for(name)},
          settings};
}

std::string_view packages_of(std::string_view name) {
  const TransportName* known = find_transport(name);
  return known == nullptr ? "its library" : known->packages;
}

std::string next_step(std::string_view name) {
  return fmt::format(
      "install {} and rebuild Lockstep, or name the folder of {} in "
      "LOCKSTEP_PLUGIN_PATH",
      packages_of(name), plugin_file(name));
}

PluginStatus status_of(const std::string& name, const Settings& settings) {
  if (const std::string conflict = conflict_of(name); !conflict.empty())
    return {.name = name,
            .detail = fmt::format("{}; {}", conflict, kAvoidMalloc)};
  const PluginSearch search = search_for(name, settings);
  if (search.table() != nullptr)
    return {.name = name, .found = true, .detail = search.file()};
  return {.name = name,
          .detail = fmt::format("{}; {}", search.reason(), next_step(name))};
}

}  // namespace

const LockstepTransportTable& load_transport(const std::string& name,
                                             const Settings& settings) {
  if (const std::string conflict = conflict_of(name); !conflict.empty())
    throw InvalidArgument(
        fmt::format("the backend \"{}\" is not available: {}\n  next:    {}",
                    name, conflict, kAvoidMalloc));
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
  for (const TransportName& plugin : kTransports)
    all.push_back(status_of(std::string(plugin.name), settings));
  return all;
}

std::string plugin_folder() {
  std::vector<std::string_view> names{kGpuPlugin};
  for (const TransportName& plugin : kTransports) names.push_back(plugin.name);
  return folder_of_plugins(names);
}

}  // namespace lockstep
