// Selects the root cause among the errors of several ranks.
#pragma once

#include <exception>
#include <span>

namespace lockstep {

// The first of `errors` that is not a consequence of another rank's error, as a
// PeerFailure is; the first error if all are consequences; null if `errors` has
// no error.
std::exception_ptr root_cause(std::span<const std::exception_ptr> errors);

}  // namespace lockstep
