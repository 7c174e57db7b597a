#include "lockstep/comm/stop_request.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/exit_codes.h"

namespace lockstep {
namespace {

static_assert(StopRequest::kStartAgain == kExitStartAgain);

std::atomic<bool> exists{false};
volatile std::sig_atomic_t asked = 0;

}  // namespace

StopRequest::StopRequest(std::shared_ptr<ProcessGroup> group, int signal)
    : group_(std::move(group)), signal_(signal) {
  if (!group_) throw InvalidArgument("StopRequest needs a group");
  if (exists.exchange(true))
    throw InvalidArgument(
        "this process has a StopRequest already: use that one, or destroy it "
        "first");
  asked = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { asked = 1; };
  // After one signal the next one has its usual effect.
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  if (::sigaction(signal_, &action, &earlier_) != 0) {
    exists = false;
    throw InvalidArgument("StopRequest: signal " + std::to_string(signal_) +
                          " cannot be handled; use SIGTERM or SIGUSR2");
  }
}

StopRequest::~StopRequest() {
  ::sigaction(signal_, &earlier_, nullptr);
  exists = false;
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
