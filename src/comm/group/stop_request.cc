#include "lockstep/comm/stop_request.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/exit_codes.h"
#include "src/base/mutex.h"

namespace lockstep {
namespace {

static_assert(StopRequest::kStartAgain == kExitStartAgain);

volatile std::sig_atomic_t asked = 0;

// The process's handler, which all its StopRequests share.
struct Handler {
  Mutex mutex;
  int users LOCKSTEP_GUARDED_BY(mutex) = 0;
  int signal LOCKSTEP_GUARDED_BY(mutex) = 0;
  struct sigaction earlier LOCKSTEP_GUARDED_BY(mutex) {};
};

Handler& handler() {
  static auto* const only = new Handler;  // static objects may still use it
  return *only;
}

}  // namespace

StopRequest::StopRequest(std::shared_ptr<ProcessGroup> group, int signal)
    : group_(std::move(group)) {
  if (!group_) throw InvalidArgument("StopRequest needs a group");
  Handler& shared = handler();
  const MutexLock lock(shared.mutex);
  if (shared.users > 0 && signal != shared.signal)
    throw InvalidArgument(
        fmt::format("this process has a StopRequest for signal {} already, so "
                    "none for {} can be added: use one signal",
                    shared.signal, signal));
  if (shared.users == 0) {
    asked = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { asked = 1; };
    // After one signal the next one has its usual effect.
    action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
    if (::sigaction(signal, &action, &shared.earlier) != 0)
      throw InvalidArgument(fmt::format(
          "StopRequest: signal {} cannot be handled; use SIGTERM or SIGUSR2",
          signal));
    shared.signal = signal;
  }
  ++shared.users;
}

StopRequest::~StopRequest() {
  Handler& shared = handler();
  const MutexLock lock(shared.mutex);
  if (--shared.users == 0) ::sigaction(shared.signal, &shared.earlier, nullptr);
}

bool StopRequest::agreed() {
  std::array<std::int32_t, 1> wish{asked};
  if (group_->size() > 1)
    group_
        ->all_reduce(view(std::span<std::int32_t>(wish)), ReduceOp::kMax,
                     {.label = "whether a rank was asked to stop"})
        .wait();
  return wish[0] != 0;
}

}  // namespace lockstep
