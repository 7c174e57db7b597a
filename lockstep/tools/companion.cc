#include "lockstep/tools/companion.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/comm/wire/transport_plugin.h"

namespace lockstep {
namespace {

std::filesystem::path own_folder() {
  std::error_code unknown;
  return std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path();
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

void become(const std::vector<std::string>& command) {
  if (const std::string plugins = plugin_folder(); !plugins.empty())
    ::setenv("LOCKSTEP_PLUGIN_PATH", plugins.c_str(), /*replace=*/0);
  std::vector<char*> words;
  for (const std::string& word : command)
    words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(words.front(), words.data());
  throw SystemError("cannot start " + command.front(), errno);
}

}  // namespace lockstep
