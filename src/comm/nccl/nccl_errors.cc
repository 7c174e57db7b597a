#include "src/comm/nccl/nccl_errors.h"

#include <fmt/format.h>

#include <chrono>
#include <vector>

#include "lockstep/base/error.h"
#include "src/comm/operation/operation_text.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// The kernel closes the connections of a killed process first. It reports the
// death once the driver has freed the process's GPU memory.
constexpr auto kDeathShows = 1s;

// Replaces `error`, with which NCCL lost a connection, by the CPU group's if
// that learns of a lost rank soon.
bool find_lost_rank(Backend& control, std::exception_ptr& error) {
  const Deadline enough(kDeathShows);
  Backoff backoff(1ms, 20ms);
  do {
    try {
      control.check_peers();
    } catch (...) {
      error = std::current_exception();
      return true;
    }
  } while (backoff.wait(enough) != WaitResult::kTimedOut);
  return false;
}

}  // namespace

std::string describe_timeout(const NcclOperation& pending, const GpuPlace& at) {
  std::string text =
      describe_timeout_of(describe(pending.operation), pending.begun,
                          at.identity, fmt::format(", GPU {}", at.gpu));
  std::vector<int> ranks;
  if (is_point_to_point(pending.operation.kind))
    ranks = {pending.operation.peer};
  else if (pending.check)
    ranks = pending.check->missing();
  for (const int rank : ranks)
    text += fmt::format("\n  missing: {}", at.identity.describe(rank));
  if (pending.behind_capture)
    return text +
           "\n  likely:  it waits for the end of a capture on this rank, which "
           "includes the group's other operations"
           "\n  next:    end the capture before waiting for operations "
           "outside of it";
  if (ranks.empty() && !pending.check && at.identity.size > 1)
    return text +
           "\n  missing: unknown, since LOCKSTEP_CHECK turns off the check of "
           "the ranks' calls"
           "\n  likely:  a rank is slow or dead, or called another operation "
           "in this place"
           "\n  next:    set LOCKSTEP_CHECK=all on every rank, so that the "
           "error names the missing rank, and read the ranks' logs";
  if (ranks.empty())
    text +=
        "\n  missing: no rank; all have called it, but a device or a link "
        "between two does not finish";
  return text +
         "\n  likely:  a missing rank is slow or dead, or called another "
         "operation in this place"
         "\n  next:    read the missing ranks' logs; NCCL_DEBUG=INFO shows "
         "what NCCL does, LOCKSTEP_TIMEOUT sets how long to wait, in seconds";
}

std::exception_ptr explained(const std::exception_ptr& error,
                             const Operation* operation, const GpuPlace& at) {
  const std::string where = fmt::format(
      "{} failed on rank {} of {} (group \"{}\", GPU {}): ",
      operation != nullptr ? describe(*operation) : "the group's work",
      at.identity.rank, at.identity.size, at.identity.name, at.gpu);
  try {
    std::rethrow_exception(error);
  } catch (const Mismatch&) {
    return error;
  } catch (const Timeout&) {
    return error;
  } catch (const SystemError&) {
    return error;
  } catch (const PeerFailure& failure) {
    return std::make_exception_ptr(
        PeerFailure(failure.rank(), where + failure.what()));
  } catch (const NetworkError& failure) {
    return std::make_exception_ptr(NetworkError(where + failure.what()));
  } catch (const InvalidArgument& failure) {
    return std::make_exception_ptr(InvalidArgument(where + failure.what()));
  } catch (const std::exception& failure) {
    return std::make_exception_ptr(Error(where + failure.what()));
  }
}

bool came_from(Backend& control, std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerFailure&) {
    return true;
  } catch (const NetworkError&) {
    return find_lost_rank(control, error);
  } catch (const std::exception&) {
    // This rank has seen the error itself.
  }
  return false;
}

}  // namespace lockstep
