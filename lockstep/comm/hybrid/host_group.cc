#include "lockstep/comm/hybrid/host_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/wire/message_transport.h"

namespace lockstep {
namespace {

GroupIdentity identity_on_host(const GroupIdentity& whole, int host,
                               const std::vector<int>& ranks) {
  GroupIdentity identity{.name = fmt::format("{}/host{}", whole.name, host),
                         .size = static_cast<int>(ranks.size())};
  for (const int rank : ranks)
    identity.members.push_back(whole.rank_in_job(rank));
  identity.rank =
      static_cast<int>(std::ranges::find(ranks, whole.rank) - ranks.begin());
  return identity;
}

}  // namespace

HostGroup::HostGroup(const GroupIdentity& whole, int host,
                     std::vector<int> ranks, Store& store,
                     const Settings& settings)
    : ranks_(std::move(ranks)),
      backend_(make_shm_backend(identity_on_host(whole, host, ranks_), store,
                                settings)) {}

Work HostGroup::start(Operation operation) {
  operation.sequence = ++sequence_;
  return backend_->start(operation);
}

void HostGroup::wait(const Work& work) {
  try {
    work.wait();
  } catch (const PeerFailure& lost) {
    throw TransportError(kTransportBroken,
                         ranks_.at(static_cast<std::size_t>(lost.rank())),
                         lost.what());
  }
}

void HostGroup::forget(const Work& work) noexcept {
  try {
    work.wait();
  } catch (const std::exception&) {  // its cause is known
  }
}

}  // namespace lockstep
