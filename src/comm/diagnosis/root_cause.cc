#include "src/comm/diagnosis/root_cause.h"

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

bool is_peer_failure(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerFailure&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

std::exception_ptr root_cause(std::span<const std::exception_ptr> errors) {
  std::exception_ptr cause;
  for (const std::exception_ptr& error : errors)
    if (error &&
        (!cause || (is_peer_failure(cause) && !is_peer_failure(error))))
      cause = error;
  return cause;
}

}  // namespace lockstep
