#include "lockstep/comm/wire/transport_plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "lockstep/base/error.h"

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

// The folder of the library or program that this code is part of.
std::filesystem::path own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 ||
      info.dli_fname == nullptr)
    return {};
  std::error_code ignored;
  const auto file = std::filesystem::canonical(info.dli_fname, ignored);
  // For a program the loader may only know the name it was started by.
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (file.empty() ? program : file).parent_path();
}

std::vector<std::string> places(const std::string& name,
                                const Settings& settings) {
  const std::string file = fmt::format("liblockstep_{}.so", name);
  std::vector<std::string> found;
  const auto add = [&](const std::filesystem::path& folder) {
    std::error_code ignored;
    if (!folder.empty() && std::filesystem::exists(folder / file, ignored))
      found.push_back(folder / file);
  };
  add(settings.plugin_path);
  const auto own = own_folder();
  add(own);
  add(own / "../lib");
  add(own / "../lib/lockstep");
  add(LOCKSTEP_PLUGIN_FOLDER);  // where they were to be installed
  found.push_back(file);        // the loader's path
  return found;
}

// Gloo's names are also those of the Gloo inside LibTorch, so that its plug-in
// must look at its own library first. The sanitizers forbid that.
int flags_for([[maybe_unused]] const std::string& name) {
  int flags = RTLD_NOW | RTLD_LOCAL;
#if !defined(LOCKSTEP_SANITIZED)
  if (name == "gloo") flags |= RTLD_DEEPBIND;
#endif
  return flags;
}

struct Loaded {
  void* handle = nullptr;
  std::string detail;
};

Loaded open_plugin(const std::string& name, const Settings& settings) {
  Loaded loaded;
  for (const std::string& place : places(name, settings)) {
    loaded.handle = ::dlopen(place.c_str(), flags_for(name));
    const char* error = loaded.handle == nullptr ? ::dlerror() : nullptr;
    loaded.detail = error == nullptr ? place : error;
    if (loaded.handle != nullptr) break;
  }
  return loaded;
}

}  // namespace

void* plugin_symbol(const std::string& name, const char* symbol,
                    const Settings& settings) {
  const Loaded loaded = open_plugin(name, settings);
  if (loaded.handle == nullptr)
    throw InvalidArgument(fmt::format(
        "the backend \"{}\" is not available: {}\n  next:    install {} and "
        "build Lockstep anew, or name the folder of liblockstep_{}.so in "
        "LOCKSTEP_PLUGIN_PATH; `lockstep doctor` shows what this machine has",
        name, loaded.detail, packages_of(name), name));
  return ::dlsym(loaded.handle, symbol);
}

const LockstepTransportTable& load_transport(const std::string& name,
                                             const Settings& settings) {
  const auto entry = reinterpret_cast<LockstepTransportEntry>(
      plugin_symbol(name, LOCKSTEP_TRANSPORT_ENTRY, settings));
  const LockstepTransportTable* table = entry == nullptr ? nullptr : entry();
  if (table == nullptr || table->version != kTransportVersion)
    throw InvalidArgument(fmt::format(
        "the plug-in liblockstep_{}.so is of another version of Lockstep\n"
        "  next:    install the one that was built together with this library",
        name));
  return *table;
}

std::vector<PluginStatus> plugin_status(const Settings& settings) {
  std::vector<PluginStatus> all;
  for (const KnownPlugin& plugin : kPlugins) {
    PluginStatus status{.name = plugin.name};
    Loaded loaded = open_plugin(plugin.name, settings);
    status.found = loaded.handle != nullptr;
    status.detail = status.found
                        ? loaded.detail
                        : fmt::format("{}; install {} and build Lockstep anew",
                                      loaded.detail, plugin.packages);
    all.push_back(std::move(status));
  }
  return all;
}

}  // namespace lockstep
