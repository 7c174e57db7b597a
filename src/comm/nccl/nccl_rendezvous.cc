#include "src/comm/nccl/nccl_rendezvous.h"

#include <fmt/format.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Every rank's device, and rank 0's identifier for NCCL.
struct NcclInfo {
  std::string device;
  std::string id;
};

std::vector<NcclInfo> exchange(const Gpu& gpu, const GroupIdentity& identity,
                               Store& store, const GatherWait& wait) {
  const std::string device = gpu.name();
  const std::string mine =
      device + '\n' + (identity.rank == 0 ? unique_id(gpu) : "");
  std::vector<NcclInfo> cards;
  for (const std::string& card :
       store_all_gather(identity, "nccl", mine, store, wait)) {
    const std::size_t end = card.find('\n');
    cards.push_back({card.substr(0, end), card.substr(end + 1)});
  }
  return cards;
}

void refuse_shared_devices(const std::vector<NcclInfo>& cards,
                           const GroupIdentity& identity) {
  for (int a = 0; a < identity.size; ++a)
    for (int b = a + 1; b < identity.size; ++b)
      if (cards[static_cast<std::size_t>(a)].device ==
          cards[static_cast<std::size_t>(b)].device)
        throw InvalidArgument(fmt::format(
            "group \"{}\": {} and {} use one GPU ({}), which NCCL cannot\n"
            "  next:    give each rank of a host the device of its local rank, "
            "and start no more ranks than there are GPUs; for tests, "
            "LOCKSTEP_SHARE_GPUS=1 lets ranks share them",
            identity.name, identity.describe(a), identity.describe(b),
            cards[static_cast<std::size_t>(a)].device));
}

// NCCL identifies a rank's host by this variable, if it is set, and reads it
// once, when the process makes its first communicator.
void pass_for_a_host_once(const Settings& settings) {
  static std::once_flag once;
  std::call_once(once, [&] {
    if (!settings.rank) return;
    ::setenv("NCCL_HOSTID", fmt::format("rank {}", *settings.rank).c_str(), 0);
    if (settings.local_world_size == settings.world_size)
      ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  });
}

}  // namespace

void check_gpu(const Gpu& gpu) {
  const int count = Gpu::count(gpu.table());
  if (gpu.index() >= 0 && gpu.index() < count) return;
  throw InvalidArgument(fmt::format(
      "there is no GPU {}: this process sees {} ({})\n  next:    look at "
      "nvidia-smi, and at CUDA_VISIBLE_DEVICES",
      gpu.index(), count, gpu.table().libraries));
}

std::unique_ptr<GpuCommunicator> rendezvous_on_gpus(const Gpu& gpu,
                                                    const DeviceGroup& group,
                                                    const GatherWait& wait) {
  const GroupIdentity& identity = group.identity;
  const auto cards = exchange(gpu, identity, *group.store, wait);
  if (group.settings.share_gpus)
    pass_for_a_host_once(group.settings);
  else
    refuse_shared_devices(cards, identity);
  return std::make_unique<GpuCommunicator>(
      gpu, LockstepGpuCommConfig{.rank = identity.rank,
                                 .size = identity.size,
                                 .id = cards.front().id.data(),
                                 .name = identity.name.c_str()});
}

}  // namespace lockstep
