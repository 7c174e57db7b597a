// The backends that exist, by name.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/store/store.h"
#include "src/base/settings.h"
#include "src/comm/nccl/device_group.h"
#include "src/comm/operation/backend.h"
#include "src/comm/rendezvous/job_fields.h"

namespace lockstep {

// Every name that make_backend accepts: the backends for CPU memory, without
// "auto".
std::span<const std::string_view> backend_names();

// The name of the backend for CPU memory where a program asks for `asked`, a
// name as in InitOptions. Throws InvalidArgument for an unknown name, with the
// known ones, and with LOCKSTEP_BACKEND if the name comes from there.
std::string cpu_backend_name(const std::string& asked,
                             const Settings& settings);

// The settings in which all ranks of a job agree, because their groups cannot
// form or would wait in vain otherwise; `asked` is as above.
std::vector<JobField> settings_of_job(const std::string& asked,
                                      const Settings& settings);

// Makes the backend called `name` together with the other ranks of `identity`'s
// group, all of which call this with the same store.
std::shared_ptr<Backend> make_backend(const std::string& name,
                                      const GroupIdentity& identity,
                                      std::shared_ptr<Store> store,
                                      const Settings& settings);

// Throws InvalidArgument with the reason and the next step if no GPU is usable.
void require_gpus(const Settings& settings);

// A group's GPU memory. The machine need not have a GPU.
std::shared_ptr<GpuMemory> make_device_memory(const GroupIdentity& identity,
                                              const Settings& settings);

// Makes the backend "nccl" for a rank's buffers on `device`, likewise. Throws
// InvalidArgument if this machine has no GPU support.
std::shared_ptr<Backend> make_device_backend(Device device,
                                             const DeviceGroup& group);

}  // namespace lockstep
