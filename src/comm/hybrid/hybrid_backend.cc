#include "src/comm/hybrid/hybrid_backend.h"

#include "src/comm/hybrid/host_map.h"
#include "src/comm/hybrid/hybrid_way.h"
#include "src/comm/shm/shm_backend.h"
#include "src/comm/wire/wire_backend.h"

namespace lockstep {

std::shared_ptr<Backend> make_hybrid_backend(const GroupIdentity& identity,
                                             std::shared_ptr<Store> store,
                                             const Settings& settings) {
  const HostMap hosts = find_hosts(identity, *store, settings);
  if (hosts.hosts() == 1) return make_shm_backend(identity, *store, settings);
  std::unique_ptr<CollectiveWay> way;
  if (hosts.most() > 1)
    way = std::make_unique<HybridWay>(identity, hosts, *store, settings);
  return make_wire_backend(settings.wire, identity, std::move(store), settings,
                           std::move(way));
}

}  // namespace lockstep
