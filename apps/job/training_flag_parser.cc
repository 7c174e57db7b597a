#include "apps/job/training_flag_parser.h"

#include <CLI/CLI.hpp>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace lockstep {
namespace {

CLI::Option* add_target(CLI::App& command, const TrainingFlag& flag,
                        bool& target) {
  return command.add_flag(flag.name, target, flag.help);
}

// entries_of() says why the list is not CLI11's.
template <class Entry>
CLI::Option* add_target(CLI::App& command, const TrainingFlag& flag,
                        std::vector<Entry>& target) {
  return command.add_option_function<std::string>(
      flag.name,
      [&target](const std::string& list) {
        if constexpr (std::is_arithmetic_v<Entry>)
          target = numbers_in<Entry>(list);
        else
          target = entries_of(list);
      },
      flag.help);
}

template <class Target>
CLI::Option* add_target(CLI::App& command, const TrainingFlag& flag,
                        Target& target) {
  if (!flag.alone.empty())
    return command
        .add_option_function<std::string>(
            flag.name,
            [&target, alone = flag.alone](const std::string& value) {
              CLI::detail::lexical_cast(value.empty() ? alone : value, target);
            },
            flag.help)
        ->expected(0, 1);
  CLI::Option* const option = command.add_option(flag.name, target, flag.help);
  if constexpr (std::is_arithmetic_v<Target> ||
                std::is_same_v<Target, std::string>)
    if (flag.tells_default) option->capture_default_str();
  return option;
}

}  // namespace

CLI::Option* add_flag(CLI::App& command, const TrainingFlag& flag) {
  CLI::Option* const option = std::visit(
      [&](auto* target) { return add_target(command, flag, *target); },
      flag.target);
  if (flag.check) option->check(flag.check);
  if (!flag.type_name.empty()) option->type_name(flag.type_name);
  return option;
}

void add_flags(CLI::App& command, std::span<const TrainingFlag> flags) {
  for (const TrainingFlag& flag : flags)
    add_flag(command, flag)->group(flag.group);
}

}  // namespace lockstep
