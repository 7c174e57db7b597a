#include "src/base/shell_word.h"

#include <algorithm>
#include <cctype>

namespace lockstep {
namespace {

// Whether it means itself everywhere in a word.
bool is_plain(char letter) {
  constexpr std::string_view kPlain = "_-+./:,@%=";
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 ||
         kPlain.find(letter) != std::string_view::npos;
}

}  // namespace

std::string shell_word(std::string_view text) {
  if (!text.empty() && std::ranges::all_of(text, is_plain))
    return std::string(text);
  std::string word = "'";
  for (const char letter : text)
    word += letter == '\'' ? "'\\''" : std::string(1, letter);
  return word + "'";
}

std::string command_line(std::span<const std::string> words) {
  std::string line;
  for (const std::string& word : words)
    line += (line.empty() ? "" : " ") + shell_word(word);
  return line;
}

}  // namespace lockstep
