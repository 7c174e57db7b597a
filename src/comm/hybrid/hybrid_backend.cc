#include "src/comm/hybrid/hybrid_backend.h"

#include "src/comm/hybrid/host_map.h"
#include "src/comm/hybrid/hybrid_way.h"
#include "src/comm/rendezvous/store_all_gather.h"
#include "src/comm/shm/shm_backend.h"
#include "src/comm/wire/wire_backend.h"

namespace lockstep {

std::shared_ptr<Backend> make_hybrid_backend(const GroupIdentity& identity,
                                             std::shared_ptr<Store> store,
                                             const Settings& settings) {
  const auto gather = [&](const std::string& subject, const std::string& mine) {
    return store_all_gather(identity, subject, mine, *store,
                            {settings.rendezvous_timeout});
  };
  const HostMap hosts =
      identity.size == 1 ? map_hosts({""})
                         : find_hosts(identity.rank, settings.host_id, gather);
  if (hosts.hosts() == 1) return make_shm_backend(identity, *store, settings);
  std::unique_ptr<CollectiveWay> way;
  if (hosts.most() > 1)
    way = std::make_unique<HybridWay>(identity, hosts, *store, settings);
  return make_wire_backend(settings.wire, identity, std::move(store), settings,
                           std::move(way));
}

}  // namespace lockstep
