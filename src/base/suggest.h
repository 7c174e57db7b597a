// "Did you mean …?" for names that a user typed.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// The shortest name of `known` that begins with `typed`, or else the one that
// differs from it by the fewest single-character edits (Levenshtein); "" when
// none is near. A name is near if at most two letters, or at most a third of
// them, differ. A beginning has at least three letters.
std::string nearest_name(std::string_view typed,
                         std::span<const std::string_view> known);

// One line about an unknown name, with the known names and the nearest one:
// `unknown model "cnm": did you mean "cnn"? Known: cnn, convnet`.
std::string unknown_name(std::string_view what, std::string_view typed,
                         std::span<const std::string_view> known);

}  // namespace lockstep
