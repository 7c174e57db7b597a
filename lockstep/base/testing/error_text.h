// What somebody is told whose call is refused.
//
// Threads: any.
#pragma once

#include <concepts>
#include <exception>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

// The message of the Refusal that `call` throws; another text when it throws
// something else, or nothing.
template <class Refusal = InvalidArgument>
std::string error_text(const std::invocable auto& call) {
  try {
    call();
  } catch (const Refusal& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

}  // namespace lockstep
