#include "src/comm/shm/wait_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "src/comm/operation/operation_text.h"
#include "src/comm/shm/announced_wait.h"
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
  if (message_ != nullptr) return {*peer()};
  // Later collectives wait for the ranks that the oldest waits for.
  collectives_->visit(collectives_->completed() + 1,
                      [&](PendingCollective& collective) {
                        ranks = collective.missing(context);
                      });
  return ranks;
}

std::optional<int> WaitTarget::peer() const {
  if (message_ == nullptr) return std::nullopt;
  const int peer = message_->operation.peer;
  return peer == kAnySource ? message_->source : peer;
}

// A missing rank may wait for another one itself.
std::vector<int> WaitTarget::late(
    const ShmContext& context, Deadline::Clock::time_point waited_since) const {
  // A waiting rank announces itself every 50 to 150 ms, unless it is stopped. A
  // rank that stopped long ago must not seem to wait.
  constexpr Deadline::Clock::duration kLongest = std::chrono::seconds(5);
  const auto recently =
      std::min(kLongest, (Deadline::Clock::now() - waited_since) / 4);
  const auto find_waiting =
      [&](const std::vector<int>& ranks) -> std::optional<WaitingRank> {
    for (const int rank : ranks)
      if (auto awaited = wait_of(context, rank, recently))
        return WaitingRank{rank, std::move(awaited)};
    return std::nullopt;
  };
  // The calling thread may wait for something else, or not at all.
  const int own = context.identity.rank;
  return ends_of_waits(
      {missing(context), wants_any()},
      {own, context.identity.size, wait_of(context, own, recently)},
      find_waiting);
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

std::exception_ptr WaitTarget::call_meanwhile() const {
  if (message_ != nullptr) return nullptr;
  const std::function<void()>* meanwhile = nullptr;
  collectives_->visit(ticket_, [&](PendingCollective& collective) {
    meanwhile = collective.operation().meanwhile;
  });
  try {
    if (meanwhile != nullptr && *meanwhile) (*meanwhile)();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

Deadline::Clock::time_point WaitTarget::begun() const {
  if (message_ != nullptr) return message_->begun;
  auto when = Deadline::Clock::now();
  collectives_->visit(ticket_, [&](PendingCollective& collective) {
    when = collective.begun();
  });
  return when;
}

std::string WaitTarget::describe_timeout(
    const ShmContext& context, Deadline::Clock::time_point waited_since) const {
  const GroupIdentity& identity = context.identity;
  const std::vector<int> ranks = late(context, waited_since);
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
