#include "lockstep/comm/wire/transport_plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
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

std::filesystem::path own_program() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored);
}

// The library or program that this code is part of.
std::filesystem::path own_file() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_file), &info) == 0 ||
      info.dli_fname == nullptr)
    return {};
  std::error_code ignored;
  const auto file = std::filesystem::canonical(info.dli_fname, ignored);
  // For a program the loader may only know the name it was started by.
  return file.empty() ? own_program() : file;
}

// Where a plug-in is looked for. What was moved together comes before what only
// the build knew; the loader's path is in between, since a program that CMake
// linked to the package has the package's folder there.
struct Places {
  std::vector<std::string> first;
  std::vector<std::string> after_loader;
};

void add(std::vector<std::string>& folders,
         const std::filesystem::path& folder) {
  if (folder.empty()) return;
  const std::string name = folder.lexically_normal().string();
  if (std::ranges::find(folders, name) == folders.end())
    folders.push_back(name);
}

Places places(const Settings& settings) {
  Places all;
  add(all.first, settings.plugin_path);
  for (const auto& file : {own_file(), own_program()}) {
    if (file.empty()) continue;
    const auto folder = file.parent_path();
    add(all.first, folder);
    add(all.first, folder / "lockstep");
    add(all.first, folder / "../lib");
    add(all.first, folder / "../lib/lockstep");
    add(all.first, folder / ".." / LOCKSTEP_PLUGIN_SUBFOLDER);
  }
  add(all.after_loader, LOCKSTEP_PLUGIN_FOLDER);
  add(all.after_loader, LOCKSTEP_PLUGIN_BUILD_FOLDER);
  return all;
}

std::string file_of(std::string_view name) {
  return fmt::format("liblockstep_{}.so", name);
}

bool exists(const std::string& folder, const std::string& file) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::path(folder) / file, ignored);
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

// One search for a plug-in, and what came of it.
class Search {
 public:
  Search(const std::string& name, const Settings& settings)
      : name_(name), file_(file_of(name)) {
    const Places all = places(settings);
    if (in(all.first) || at_loaders() || in(all.after_loader)) return;
    for (const auto* folders : {&all.first, &all.after_loader})
      looked_.insert(looked_.end(), folders->begin(), folders->end());
  }

  // Null when there is none.
  const LockstepTransportTable* table() const { return table_; }
  // The file that was taken.
  const std::string& file() const { return taken_; }

  // Why there is none: each file that cannot be used, else the folders.
  std::string reason() const {
    if (!unusable_.empty())
      return fmt::format("{}", fmt::join(unusable_, "; "));
    return fmt::format("{} is neither in {} nor on the loader's path", file_,
                       fmt::join(looked_, ", "));
  }

 private:
  bool in(const std::vector<std::string>& folders) {
    for (const std::string& folder : folders)
      if (exists(folder, file_) &&
          open((std::filesystem::path(folder) / file_).string()))
        return true;
    return false;
  }

  bool at_loaders() {
    const std::size_t before = unusable_.size();
    if (open(file_)) return true;
    // That the loader does not know the name is no news.
    if (unusable_.back().starts_with(file_ + ": cannot open shared object"))
      unusable_.resize(before);
    return false;
  }

  bool open(const std::string& place) {
    void* handle = ::dlopen(place.c_str(), flags_for(name_));
    if (handle == nullptr) {
      unusable_.emplace_back(::dlerror());
      if (unusable_.back().find(std::strerror(EMFILE)) != std::string::npos)
        throw SystemError(fmt::format("could not load {}", file_), EMFILE);
      return false;
    }
    const auto entry = reinterpret_cast<LockstepTransportEntry>(
        ::dlsym(handle, LOCKSTEP_TRANSPORT_ENTRY));
    table_ = entry == nullptr ? nullptr : entry();
    Dl_info info{};
    if (::dladdr(reinterpret_cast<const void*>(table_), &info) != 0)
      taken_ = info.dli_fname;
    if (table_ != nullptr && table_->version == kTransportVersion) return true;
    table_ = nullptr;
    ::dlclose(handle);
    unusable_.push_back(
        fmt::format("{} is of another version of Lockstep", place));
    return false;
  }

  std::string name_;
  std::string file_;
  const LockstepTransportTable* table_ = nullptr;
  std::string taken_;  // as the loader names it
  std::vector<std::string> unusable_;
  std::vector<std::string> looked_;
};

std::string next_step(const std::string& name) {
  return fmt::format(
      "install {} and build Lockstep anew, or name the folder of {} in "
      "LOCKSTEP_PLUGIN_PATH",
      packages_of(name), file_of(name));
}

}  // namespace

const LockstepTransportTable& load_transport(const std::string& name,
                                             const Settings& settings) {
  const Search search(name, settings);
  if (search.table() == nullptr)
    throw InvalidArgument(fmt::format(
        "the backend \"{}\" is not available: {}\n  next:    {}; `lockstep "
        "doctor` shows what this machine has",
        name, search.reason(), next_step(name)));
  return *search.table();
}

std::vector<PluginStatus> plugin_status(const Settings& settings) {
  std::vector<PluginStatus> all;
  for (const KnownPlugin& plugin : kPlugins) {
    PluginStatus status{.name = plugin.name};
    const Search search(plugin.name, settings);
    status.found = search.table() != nullptr;
    status.detail = status.found ? search.file()
                                 : fmt::format("{}; {}", search.reason(),
                                               next_step(plugin.name));
    all.push_back(std::move(status));
  }
  return all;
}

std::string plugin_folder() {
  const Places all = places({});
  for (const auto* folders : {&all.first, &all.after_loader})
    for (const std::string& folder : *folders)
      for (const KnownPlugin& plugin : kPlugins)
        if (exists(folder, file_of(plugin.name))) return folder;
  return {};
}

}  // namespace lockstep
