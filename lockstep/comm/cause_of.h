// Which of several ranks' errors says why they failed.
//
// Threads: a pure function.
#pragma once

#include <exception>
#include <span>

namespace lockstep {

// The first of `errors` that is no consequence of another, as PeerFailures are;
// the first of all where every one is; null where there is none.
std::exception_ptr cause_of(std::span<const std::exception_ptr> errors);

}  // namespace lockstep
