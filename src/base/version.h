// Lockstep's version, as CMakeLists.txt names it: "0.1.0".
#pragma once

#include <string_view>

namespace lockstep {

std::string_view version();

}  // namespace lockstep
