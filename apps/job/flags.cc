#include "apps/job/flags.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/replacing_file.h"
#include "src/base/suggest.h"

namespace lockstep {
namespace {

// Whether `command` has the flag "--log-dir".
bool has_flag(const CLI::App& command, const std::string& flag) {
  return command.get_option_no_throw(flag) != nullptr;
}

// "--log-dir=a" for "--log_dir=a", where `command` has only the former.
void take_dashes(const CLI::App& command, std::string& word) {
  std::string flag = word.substr(0, word.find('='));
  if (!flag.starts_with("--") || has_flag(command, flag)) return;
  std::ranges::replace(flag, '_', '-');
  if (has_flag(command, flag)) word.replace(0, flag.size(), flag);
}

// Makes two words of "--log-dir=", for which CLI11 takes the next word as
// value.
void give_empty_value(const CLI::App& command, std::vector<std::string>& words,
                      std::size_t at) {
  std::string& word = words[at];
  if (!word.starts_with("--") || word.find('=') + 1 != word.size()) return;
  const std::string flag = word.substr(0, word.size() - 1);
  const CLI::Option* option = command.get_option_no_throw(flag);
  if (option == nullptr || option->get_items_expected_max() == 0) return;
  word = flag;
  words.insert(words.begin() + static_cast<std::ptrdiff_t>(at) + 1, "");
}

// Whether the word behind `at`, a flag, is its value. A flag that means
// something alone takes no further flag for it.
bool takes_next(const CLI::Option& flag, const std::vector<std::string>& words,
                std::size_t at) {
  if (flag.get_items_expected_min() > 0) return true;
  return flag.get_items_expected_max() > 0 && at + 1 < words.size() &&
         !words[at + 1].starts_with('-');
}

// CLI11 does not support names of two letters after one dash, nor several
// spellings of a name. A program's own arguments do not change.
void take_spellings(const CLI::App& command, std::vector<std::string>& words) {
  for (std::size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    if (!words[i].starts_with('-') && command.get_prefix_command()) return;
    if (words[i] == "-np") words[i] = "-n";
    take_dashes(command, words[i]);
    give_empty_value(command, words, i);
    const CLI::Option* option = words[i].starts_with('-')
                                    ? command.get_option_no_throw(words[i])
                                    : nullptr;
    if (option != nullptr && takes_next(*option, words, i)) ++i;
  }
}

// An unset variable of a shell must not mean that nothing is saved.
void refuse_empty_paths(const CLI::App& command) {
  constexpr std::array<std::string_view, 3> kPaths{"DIR", "FILE", "PATH"};
  for (const CLI::Option* option : command.get_options()) {
    const std::string type = option->get_type_name();
    const auto is_in = [&](std::string_view path) {
      return type.find(path) != std::string::npos;
    };
    if (std::ranges::any_of(kPaths, is_in) &&
        std::ranges::count(option->results(), "") > 0)
      throw InvalidArgument(fmt::format(
          "{} is empty; give it a value, or leave it out", option->get_name()));
  }
}

// CLI11's text, or a plain one where a flag of one value is given again.
std::string text_of_mismatch(const std::string& text) {
  constexpr std::string_view kAgain = ": At Most 1 required but received ";
  const std::size_t at = text.find(kAgain);
  if (at == std::string::npos) return text;
  const std::string times = text.substr(at + kAgain.size());
  return fmt::format("{} is given {}; give it once", text.substr(0, at),
                     times == "2" ? "twice" : times + " times");
}

}  // namespace

void check_file_to_write(std::string_view flag, const std::string& file) {
  namespace fs = std::filesystem;
  if (file.empty()) return;
  std::error_code error;
  const fs::path path = fs::absolute(file, error);
  const fs::path folder = path.parent_path();
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(fmt::format("{} {}: {}", flag, file, why));
  };
  if (fs::exists(path, error) && !fs::is_regular_file(path, error))
    refuse("that is not a file; name one");
  if (!fs::is_directory(folder, error))
    refuse(
        fmt::format("there is no folder {}; make it first", folder.string()));
  if (::access(folder.c_str(), W_OK) != 0)
    refuse(fmt::format("cannot be written: {}", std::strerror(errno)));
  try {
    check_replaceable(file);
  } catch (const SystemError& reason) {
    throw InvalidArgument(fmt::format("{}: {}", flag, reason.what()));
  }
}

void parse_flags(CLI::App& command, std::span<const char* const> arguments) {
  std::vector<std::string> words(arguments.begin(), arguments.end());
  take_spellings(command, words);
  std::reverse(words.begin(),
               words.end());  // CLI11 expects them in reverse order
  try {
    command.parse(std::move(words));
    refuse_empty_paths(command);
  } catch (const CLI::Success&) {
    throw;
  } catch (const CLI::ArgumentMismatch& error) {
    throw InvalidArgument(text_of_mismatch(error.what()));
  } catch (const CLI::ParseError& error) {
    throw InvalidArgument(error.what());
  }
}

std::string unknown_argument(const CLI::App& command, std::string_view name,
                             std::string_view argument) {
  if (!argument.starts_with('-'))
    return fmt::format("{} takes no argument \"{}\"; see {} --help", name,
                       argument, name);
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& flag : option->get_lnames())
      flags.push_back("--" + flag);
  const std::vector<std::string_view> known(flags.begin(), flags.end());
  const auto typed = argument.substr(0, argument.find('='));
  const std::string nearest = nearest_name(typed, known);
  return fmt::format(
      "unknown flag \"{}\"{} {} --help lists all", typed,
      nearest.empty() ? ";" : fmt::format(": did you mean \"{}\"?", nearest),
      name);
}

void refuse_extras(const CLI::App& command, std::string_view name) {
  const auto extras = command.remaining();
  if (!extras.empty())
    throw InvalidArgument(unknown_argument(command, name, extras.front()));
}

}  // namespace lockstep
