#include "src/comm/shm/wait_target.h"

#include <fmt/format.h>

#include <chrono>

#include "src/comm/operation/operation_text.h"
#include "src/store/host_address.h"

namespace lockstep {

std::vector<int> WaitTarget::missing(const ShmContext& context) const {
  std::vector<int> ranks;
  if (complete()) return ranks;
  if (wants_any()) {
    for (int r = 0; r < context.identity.size; ++r)
      if (r != context.identity.rank) ranks.push_back(r);
    return ranks;
  }
  if (message_ != nullptr) return {message_->operation.peer};
  // Later collectives wait for the ranks that the oldest waits for.
  collectives_->visit(collectives_->completed() + 1,
                      [&](PendingCollective& collective) {
                        ranks = collective.missing(context);
                      });
  return ranks;
}

std::string WaitTarget::describe_call() const {
  if (message_ != nullptr) return describe(message_->operation);
  std::string call = "an operation";
  collectives_->visit(ticket_, [&](PendingCollective& collective) {
    call = describe(collective.operation());
  });
  return call;
}

Deadline WaitTarget::deadline() const {
  if (message_ != nullptr) return message_->deadline;
  Deadline deadline = Deadline::never();
  collectives_->visit(ticket_, [&](PendingCollective& collective) {
    deadline = collective.deadline();
  });
  return deadline;
}

Deadline::Clock::time_point WaitTarget::begun() const {
  if (message_ != nullptr) return message_->begun;
  auto when = Deadline::Clock::now();
  collectives_->visit(ticket_, [&](PendingCollective& collective) {
    when = collective.begun();
  });
  return when;
}

std::string WaitTarget::describe_timeout(const ShmContext& context) const {
  const GroupIdentity& identity = context.identity;
  const std::vector<int> ranks = missing(context);
  std::string text = describe_timeout_of(describe_call(), begun(), identity);
  for (const int rank : ranks)
    text += fmt::format("\n  missing: {} on {}, last seen in {}",
                        identity.describe(rank), own_host_name(),
                        context.rounds->last_seen(rank));
  if (ranks.empty())
    text += "\n  missing: no rank; one stopped during the operation";
  return text +
         "\n  likely:  a missing rank is slow or dead, or called another "
         "operation in this place"
         "\n  next:    read the missing ranks' logs; LOCKSTEP_TIMEOUT sets how "
         "long to wait, in seconds";
}

}  // namespace lockstep
