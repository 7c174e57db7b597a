// The backends that exist, by name.
//
// Threads: pure functions.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/settings.h"
#include "lockstep/comm/backend.h"
#include "lockstep/store/store.h"

namespace lockstep {

class GpuMemory;

// Every name that make_backend knows: those for the CPU's memory, "auto" not
// among them.
std::span<const std::string_view> backend_names();

// Makes the backend called `name` together with the other ranks of
// `identity`'s group, all of which call this with the same store.
// InvalidArgument with the known names for any other.
std::shared_ptr<Backend> make_backend(const std::string& name,
                                      const GroupIdentity& identity,
                                      std::shared_ptr<Store> store,
                                      const Settings& settings);

// InvalidArgument, saying why and what to do, where there is no GPU to use.
void require_gpus(const Settings& settings);

// A group's memory on GPUs, of which there may be none.
std::shared_ptr<GpuMemory> make_device_memory(const GroupIdentity& identity,
                                              const Settings& settings);

// A group whose ranks have buffers on GPUs.
struct DeviceGroup {
  GroupIdentity identity;
  std::shared_ptr<Store> store;
  const Settings& settings;
  std::shared_ptr<GpuMemory> memory;
  // Throws when a rank has given up, or is gone where that is seen at once: not
  // for one that was killed on another host.
  std::function<void()> look_around{};
};

// Makes the backend "nccl" for a rank's buffers on `device`, likewise.
// InvalidArgument where nothing can be done with GPUs here.
std::shared_ptr<Backend> make_device_backend(Device device,
                                             const DeviceGroup& group);

}  // namespace lockstep
