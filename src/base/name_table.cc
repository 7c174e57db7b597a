#include "src/base/name_table.h"

namespace lockstep {

std::string listed(const std::vector<std::string>& words,
                   std::string_view conjunction) {
  std::string text;
  for (const std::string& word : words) {
    if (&word == &words.front())
      text = word;
    else if (&word == &words.back())
      text.append(" ").append(conjunction).append(" ").append(word);
    else
      text.append(", ").append(word);
  }
  return text;
}

}  // namespace lockstep
