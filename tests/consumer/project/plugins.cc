// plugins FOLDER NAME…: fails unless the library finds the plug-ins in that
// folder without a setting.
#include <lockstep/comm/wire/transport_plugin.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <span>
#include <string_view>

int main(int count, char** values) {
  const std::span<char*> arguments(values, static_cast<std::size_t>(count));
  int lost = 0;
  for (const auto& plugin : lockstep::plugin_status({})) {
    const auto wanted = arguments.subspan(2);
    if (std::ranges::find(wanted, std::string_view(plugin.name)) ==
        wanted.end())
      continue;
    std::cout << plugin.name << ": " << plugin.detail << '\n';
    std::error_code error;
    if (!plugin.found || !std::filesystem::equivalent(
                             std::filesystem::path(plugin.detail).parent_path(),
                             arguments[1], error))
      ++lost;
  }
  return lost;
}
