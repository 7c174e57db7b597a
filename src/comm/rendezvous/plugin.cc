#include "src/comm/rendezvous/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::filesystem::path own_program() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored);
}

// The library or program that contains this code.
std::filesystem::path own_file() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_file), &info) == 0 ||
      info.dli_fname == nullptr)
    return {};
  std::error_code ignored;
  const auto file = std::filesystem::canonical(info.dli_fname, ignored);
  // For a program, the loader may only know the name with which it was started.
  return file.empty() ? own_program() : file;
}

// The places to search for a plug-in. Folders that moved together with the
// program come before the build's folders; the loader's path is in between,
// since it holds the package's folder in a program that CMake linked to the
// package.
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

bool exists(const std::string& folder, const std::string& file) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::path(folder) / file, ignored);
}

// Every table begins with it.
std::uint32_t version_of(const void* table) {
  std::uint32_t version = 0;
  std::memcpy(&version, table, sizeof version);
  return version;
}

}  // namespace

PluginSearch::PluginSearch(std::string_view name, const PluginBorder& border,
                           const Settings& settings)
    : border_(border), file_(plugin_file(name)) {
  const Places all = places(settings);
  if (in(all.first) || at_loaders() || in(all.after_loader)) return;
  for (const auto* folders : {&all.first, &all.after_loader})
    looked_.insert(looked_.end(), folders->begin(), folders->end());
}

std::string PluginSearch::reason() const {
  if (!unusable_.empty()) return fmt::format("{}", fmt::join(unusable_, "; "));
  return fmt::format("{} is neither in {} nor on the loader's path", file_,
                     fmt::join(looked_, ", "));
}

bool PluginSearch::in(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders)
    if (exists(folder, file_) &&
        open((std::filesystem::path(folder) / file_).string()))
      return true;
  return false;
}

bool PluginSearch::at_loaders() {
  const std::size_t before = unusable_.size();
  if (open(file_)) return true;
  // Drop the reason that the loader does not know the name.
  if (unusable_.back().starts_with(file_ + ": cannot open shared object"))
    unusable_.resize(before);
  return false;
}

bool PluginSearch::open(const std::string& place) {
  // The thread sanitizer does not see the loader's own lock and reports a race
  // on the loader's names.
  static std::mutex loading;
  const std::lock_guard lock(loading);
  void* handle = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL | border_.flags);
  if (handle == nullptr) {
    unusable_.emplace_back(::dlerror());
    if (unusable_.back().find(std::strerror(EMFILE)) != std::string::npos)
      throw SystemError(fmt::format("could not load {}", file_), EMFILE);
    return false;
  }
  void* entry = ::dlsym(handle, border_.entry);
  table_ = entry == nullptr ? nullptr : border_.call(entry);
  Dl_info info{};
  if (::dladdr(table_, &info) != 0) taken_ = info.dli_fname;
  if (table_ != nullptr && version_of(table_) == border_.version) return true;
  table_ = nullptr;
  ::dlclose(handle);
  unusable_.push_back(
      fmt::format("{} is of another version of Lockstep", place));
  return false;
}

std::string plugin_file(std::string_view name) {
  return fmt::format("liblockstep_{}.so", name);
}

std::string folder_of_plugins(std::span<const std::string_view> names) {
  const Places all = places({});
  for (const auto* folders : {&all.first, &all.after_loader})
    for (const std::string& folder : *folders)
      for (const std::string_view name : names)
        if (exists(folder, plugin_file(name))) return folder;
  return {};
}

}  // namespace lockstep
