// The message of the error that a call throws.
//
// Threads: any thread.
#pragma once

#include <concepts>
#include <exception>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

// The message of the Refusal that `call` throws; a different text when it
// throws another error or none.
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
