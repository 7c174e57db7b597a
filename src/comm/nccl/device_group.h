// What a backend for GPUs is made of on one rank.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/store/store.h"
#include "src/base/settings.h"
#include "src/comm/operation/backend.h"

namespace lockstep {

class GpuMemory;

// The group whose backend it is, on one rank.
struct DeviceGroup {
  GroupIdentity identity;
  std::shared_ptr<Store> store;
  const Settings& settings;
  std::shared_ptr<GpuMemory> memory;
  // Throws when a rank has given up, or is gone and this rank sees that at
  // once: not for a rank that was killed on another host.
  std::function<void()> check_peers{};
};

}  // namespace lockstep
