#include "src/comm/group/registry.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "src/base/own_process.h"
#include "src/base/suggest.h"
#include "src/base/transport_names.h"
#include "src/base/version.h"
#include "src/comm/hybrid/hybrid_backend.h"
#include "src/comm/nccl/gpu.h"
#include "src/comm/nccl/gpu_memory.h"
#include "src/comm/nccl/gpu_plugin.h"
#include "src/comm/nccl/nccl_backend.h"
#include "src/comm/reference/reference_backend.h"
#include "src/comm/shm/shm_backend.h"
#include "src/comm/wire/wire_backend.h"

namespace lockstep {
namespace {

const std::vector<std::string_view>& names() {
  static const std::vector<std::string_view> all = [] {
    std::vector<std::string_view> names{"shm", "hybrid"};
    for (const TransportName& transport : kTransports)
      names.push_back(transport.name);
    names.emplace_back("reference");
    return names;
  }();
  return all;
}

}  // namespace

std::span<const std::string_view> backend_names() { return names(); }

// On one host, hybrid is shared memory alone. "nccl" concerns GPUs only.
std::string cpu_backend_name(const std::string& asked,
                             const Settings& settings) {
  const bool from_environment = asked == "auto";
  const std::string& name = from_environment ? settings.backend : asked;
  if (name == "auto" || name == "nccl") return "hybrid";
  if (std::ranges::find(names(), name) != names().end()) return name;
  std::vector<std::string_view> known{"auto", "nccl"};
  known.insert(known.end(), names().begin(), names().end());
  throw InvalidArgument(
      (from_environment ? "the environment variable LOCKSTEP_BACKEND: " : "") +
      unknown_name("backend", name, known));
}

std::vector<JobField> settings_of_job(const std::string& asked,
                                      const Settings& settings) {
  return {{"LOCKSTEP_BACKEND", cpu_backend_name(asked, settings)},
          {"LOCKSTEP_WIRE", settings.wire},
          {"LOCKSTEP_CHECK", std::string(name_of(settings.check))},
          {"the version of Lockstep", std::string(version())}};
}

std::shared_ptr<Backend> make_backend(const std::string& name,
                                      const GroupIdentity& identity,
                                      std::shared_ptr<Store> store,
                                      const Settings& settings) {
  if (name == "shm") return make_shm_backend(identity, *store, settings);
  if (name == "hybrid")
    return make_hybrid_backend(identity, std::move(store), settings);
  if (name == "reference")
    return make_reference_backend(identity, std::move(store));
  return make_wire_backend(name, identity, std::move(store), settings);
}

void require_gpus(const Settings& settings) {
  const LockstepGpuTable& table = load_gpu_table(settings);
  if (Gpu::count(table) > 0) return;
  throw InvalidArgument(
      std::string("the backend \"nccl\" needs a GPU, and this process sees "
                  "none (") +
      table.libraries +
      ")\n  next:    look at nvidia-smi, and at CUDA_VISIBLE_DEVICES");
}

std::shared_ptr<GpuMemory> make_device_memory(const GroupIdentity& identity,
                                              const Settings& settings) {
  return make_shared_in_own_process<GpuMemory>(identity, settings);
}

std::shared_ptr<Backend> make_device_backend(Device device,
                                             const DeviceGroup& group) {
  return make_nccl_backend(device, group);
}

}  // namespace lockstep
