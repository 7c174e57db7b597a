// "Did you mean …?" for names that a user typed.
//
// Threads: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// The name of `known` that differs from `typed` by the fewest single-character
// edits (Levenshtein), or "" when none is near: more than a third of the
// letters, and more than two, would have to change.
std::string nearest_name(std::string_view typed,
                         std::span<const std::string_view> known);

// One clear line for an unknown name: what it is a name of, those known, and
// the nearest: `unknown model "cnm": did you mean "cnn"? Known: cnn, convnet`.
std::string unknown_name(std::string_view what, std::string_view typed,
                         std::span<const std::string_view> known);

}  // namespace lockstep
