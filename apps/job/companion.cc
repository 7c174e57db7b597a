#include "apps/job/companion.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include "lockstep/base/error.h"
#include "src/base/process_environment.h"
#include "src/comm/wire/transport_plugin.h"

namespace lockstep {
namespace {

std::filesystem::path own_folder() {
  std::error_code unknown;
  return std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path();
}

// Pointers for execve(); borrowed.
std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words)
    pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::optional<std::string> find_companion(const Companion& companion,
                                          const EnvironmentLookup& lookup) {
  auto named = lookup(companion.variable);
  if (named && !named->empty()) return named;
  const std::filesystem::path folder = own_folder();
  const std::array<std::filesystem::path, 2> places{
      folder / companion.name,
      (folder / "../libexec/lockstep" / companion.name).lexically_normal()};
  for (const auto& place : places)
    if (::access(place.c_str(), X_OK) == 0) return place.string();
  return std::nullopt;
}

std::string require_companion(const Companion& companion,
                              const EnvironmentLookup& lookup) {
  if (const auto program = find_companion(companion, lookup)) return *program;
  throw InvalidArgument(fmt::format(
      "{} is neither in {} nor in ../libexec/lockstep from there: {}, or name "
      "the program in {}",
      companion.name, own_folder().string(), companion.remedy,
      companion.variable));
}

std::string torch_library_folder(const EnvironmentLookup& lookup) {
  const auto named = lookup("LOCKSTEP_TORCH");
  if (!named || named->empty()) return "";
  std::string folder = *named + "/lib";
  const std::string library = folder + "/libtorch_cpu.so";
  if (::access(library.c_str(), R_OK) == 0) return folder;
  throw InvalidArgument(fmt::format(
      "LOCKSTEP_TORCH is \"{}\", but {} cannot be read\n"
      "  next:    name the folder of a LibTorch (with lib/ in it) of the "
      "version that Lockstep was built with, or unset LOCKSTEP_TORCH",
      *named, library));
}

void execute(const std::vector<std::string>& command,
             const std::vector<std::string>& environment) {
  ::execve(command.front().c_str(), pointers_to(command).data(),
           pointers_to(environment).data());
  throw SystemError("cannot start " + command.front(), errno);
}

void become(const std::vector<std::string>& command,
            std::vector<std::string> environment) {
  prepend_library_folder(environment,
                         torch_library_folder(environment_variable));
  const std::string variable = "LOCKSTEP_PLUGIN_PATH=";
  const bool users = std::ranges::any_of(environment, [&](const auto& present) {
    return present.starts_with(variable);
  });
  if (const std::string plugins = plugin_folder(); !plugins.empty() && !users)
    environment.push_back(variable + plugins);
  execute(command, environment);
}

}  // namespace lockstep
