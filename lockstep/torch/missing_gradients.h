// What ranks tell each other when some parameter got no gradient.
//
// Threads: pure function, called by every rank of the group.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Gathers which of the parameters called `names` every rank is `missing` (by
// index) and throws the InvalidArgument that lists them, on every rank.
[[noreturn]] void throw_missing_gradients(ProcessGroup& group,
                                          std::span<const std::string> names,
                                          std::span<const std::size_t> missing);

}  // namespace lockstep
