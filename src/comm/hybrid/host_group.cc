#include "src/comm/hybrid/host_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/first_line.h"
#include "src/base/report_text.h"
#include "src/comm/shm/shm_backend.h"
#include "src/comm/wire/message_transport.h"
#include "src/comm/wire/wire_core.h"

namespace lockstep {
namespace {

GroupIdentity identity_on_host(const GroupIdentity& whole, int host,
                               const std::vector<int>& ranks) {
  GroupIdentity identity{.name = whole.name,
                         .size = static_cast<int>(ranks.size()),
                         .part = fmt::format("{}/host{}", whole.part, host)};
  for (const int rank : ranks)
    identity.members.push_back(whole.rank_in_job(rank));
  identity.rank =
      static_cast<int>(std::ranges::find(ranks, whole.rank) - ranks.begin());
  return identity;
}

struct Cleared {
  std::function<void()>& function;
  ~Cleared() { function = nullptr; }
};

// A group that has ended no longer knows the ranks it waited for, but its error
// names them.
std::vector<int> ranks_named_missing(std::string_view text) {
  constexpr std::string_view kHead = "missing: rank ";
  std::vector<int> ranks;
  for (std::size_t at = text.find(kHead); at != std::string_view::npos;
       at = text.find(kHead, at)) {
    at += kHead.size();
    ranks.push_back(-1);
    std::from_chars(text.data() + at, text.data() + text.size(), ranks.back());
  }
  return ranks;
}

// What ended the rank that a PeerFailure names, without its numbers of ranks of
// the host.
std::string reason_in(std::string_view text) {
  constexpr std::string_view kHead = " is gone: ";
  const std::size_t at = text.find(kHead);
  return first_line(
      at == std::string_view::npos ? text : text.substr(at + kHead.size()));
}

// The ranks that `work`, which has failed, had waited for.
std::vector<int> ranks_that_ended(const Work& work) {
  try {
    work.wait();
  } catch (const PeerFailure& lost) {
    return {lost.rank()};
  } catch (const Timeout& late) {
    return ranks_named_missing(late.what());
  } catch (const Error&) {  // the error names no rank
  }
  return {};
}

}  // namespace

Operation within_host(OperationKind kind, const Operation& whole,
                      Deadline deadline) {
  return {
      .kind = kind,
      .reduction = reduces(kind) ? whole.reduction : ReduceOp::kSum,
      .timeout = std::max(deadline.remaining(), std::chrono::nanoseconds(1)),
      .label = whole.label};
}

bool is_reduced_by_host(const Operation& operation, const HostMap& hosts) {
  return operation.kind == OperationKind::kAllReduce &&
         (operation.reduction != ReduceOp::kAverage ||
          hosts.fewest() == hosts.most());
}

HostGroup::HostGroup(const GroupIdentity& whole, int host,
                     std::vector<int> ranks, Store& store,
                     const Settings& settings)
    : host_(host),
      ranks_(std::move(ranks)),
      backend_(make_shm_backend(identity_on_host(whole, host, ranks_), store,
                                settings)) {}

HostGroup::HostGroup(int host, std::vector<int> ranks,
                     std::shared_ptr<Backend> backend)
    : host_(host), ranks_(std::move(ranks)), backend_(std::move(backend)) {}

HostGroup HostGroup::duplicate(const GroupIdentity& whole, int number) const {
  return {host_, ranks_,
          backend_->duplicate(identity_on_host(whole, host_, ranks_), number)};
}

Work HostGroup::start(Operation operation) {
  operation.sequence = ++sequence_;
  operation.meanwhile = meanwhile_.get();
  return backend_->start(operation);
}

std::vector<int> HostGroup::in_whole_group(std::vector<int> ranks) const {
  for (int& rank : ranks) rank = ranks_.at(static_cast<std::size_t>(rank));
  return ranks;
}

std::vector<int> HostGroup::missing(const Work& work) const {
  std::vector<int> ranks = work.missing();
  // The group inside the host may have ended already: its deadline passes
  // together with that of the whole group.
  if (ranks.empty() && work.done()) ranks = ranks_that_ended(work);
  return in_whole_group(std::move(ranks));
}

void HostGroup::end_because_of(const PeerFailure& lost) const {
  // Another rank of the host gave up, and knows why.
  if (auto fault = fault_in(lost.what())) throw FaultSeen(std::move(*fault));
  throw TransportError(kTransportBroken,
                       ranks_.at(static_cast<std::size_t>(lost.rank())),
                       reason_in(lost.what()));
}

void HostGroup::check_peers() try {
  backend_->check_peers();
} catch (const PeerFailure& lost) {
  end_because_of(lost);
}

void HostGroup::wait(const Work& work) {
  try {
    work.wait();
  } catch (const PeerFailure& lost) {
    end_because_of(lost);
  } catch (const Timeout& late) {
    throw WaitExpired(in_whole_group(ranks_named_missing(late.what())));
  } catch (const Mismatch&) {
    // Only where LOCKSTEP_CHECK says not to compare calls before. The text
    // would name ranks by their numbers in the host, and parts of calls.
    throw Mismatch(fmt::format(
        "ranks of one host called operations that do not fit together: one or "
        "more of {}\n"
        "  next:    LOCKSTEP_CHECK=all names the calls",
        name_ranks(ranks_)));
  }
}

void HostGroup::wait(WireCore& core, const Work& work, Deadline deadline) {
  core.waits_inside([this, work] { return missing(work); });
  WireCore::PeerWatch watch(core, deadline);
  *meanwhile_ = [&watch] { watch.check_others(); };
  const Cleared cleared{*meanwhile_};
  wait(work);
  core.waits_inside(nullptr);
}

void HostGroup::forget(const Work& work) noexcept {
  try {
    work.wait();
  } catch (const std::exception&) {  // its cause is known
  }
}

}  // namespace lockstep
