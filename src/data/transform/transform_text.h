// Transforms as text: "resize(256) | color_jitter(0.4, hue=0.1)".
//
//   transforms = transform { "|" transform }
//   transform  = name [ "(" [ argument { "," argument } ] ")" ]
//   argument   = [ name "=" ] value
//   value      = number | name | "(" value { "," value } [ "," ] ")"
//
// Names are those of name_of(), and hflip and vflip; arguments are
// torchvision's, in torchvision's order.
//
// Threads: any thread.
// Errors:  InvalidArgument with the place in the text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/transforms.h"

namespace lockstep::transforms {

// The names that parse() knows.
std::vector<std::string_view> known_names();

// Does not check the arguments' values.
std::vector<Transform> parse(std::string_view text);

// A text from which parse() makes the same transform. Arguments that have the
// default value are left out.
std::string print(const Transform& transform);

}  // namespace lockstep::transforms
