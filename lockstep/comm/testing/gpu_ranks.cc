#include "lockstep/comm/testing/gpu_ranks.h"

#include "lockstep/comm/nccl/nccl_backend.h"

namespace lockstep {

void run_gpu_ranks(const LockstepGpuTable& table, int ranks,
                   const RankBody& body) {
  const std::vector<std::string> one_host(static_cast<std::size_t>(ranks),
                                          "one host");
  run_ranks_on(
      one_host, "hybrid", [&](const std::shared_ptr<ProcessGroup>& group) {
        group->set_device_backend([&table, identity = group->identity(),
                                   world = group->world()](Device device) {
          return make_nccl_backend(table, device, identity, world->store(),
                                   world->settings());
        });
        body(group);
      });
}

}  // namespace lockstep
