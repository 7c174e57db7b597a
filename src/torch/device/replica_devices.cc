#include "src/torch/device/replica_devices.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Devices = std::vector<at::Device>;

// A LibTorch with CUDA has a device guard even without a driver.
int gpu_count() {
  if (!at::hasCUDA()) return 0;
  return c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
}

[[noreturn]] void refuse(const at::Device& device, const std::string& why,
                         const std::string& next) {
  throw InvalidArgument("replicas cannot be on " + device.str() + ": " + why +
                        "\n  next:    " + next);
}

at::Device with_number(at::Device device) {
  const bool is_open = device.is_cuda() && !device.has_index();
  if (!is_open || gpu_count() == 0) return device;
  return c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
}

void check_gpu(const at::Device& gpu) {
  const int count = gpu_count();
  if (count == 0)
    refuse(gpu, "LibTorch sees no GPU",
           "see `lockstep doctor` for the driver and the GPUs, or name "
           "at::kCPU once for each replica");
  if (gpu.index() >= count)
    refuse(gpu,
           "LibTorch sees " + std::to_string(count) + " GPUs, numbered from 0",
           "name those, or look at CUDA_VISIBLE_DEVICES");
}

void check(const Devices& devices) {
  for (auto device = devices.begin(); device != devices.end(); ++device) {
    if (!device->is_cpu() && !device->is_cuda())
      refuse(*device, "only CPUs and CUDA GPUs can have replicas",
             "name at::kCPU once for each replica, or GPUs");
    if (device->type() != devices.front().type())
      refuse(*device,
             "others are on " + devices.front().str() +
                 ", and gradients are reduced on one kind of device",
             "name GPUs alone, or CPUs alone");
    if (device->is_cpu()) continue;
    check_gpu(*device);
    if (std::find(devices.begin(), device, *device) != device)
      refuse(*device, "it is named twice, and NCCL has one rank on a GPU",
             "name each GPU once; only CPUs have several replicas");
  }
}

}  // namespace

Devices all_devices() {
  Devices devices;
  for (int gpu = 0; gpu < gpu_count(); ++gpu)
    devices.emplace_back(at::kCUDA, static_cast<at::DeviceIndex>(gpu));
  if (devices.empty())
    devices.assign(static_cast<std::size_t>(at::get_num_threads()), at::kCPU);
  return devices;
}

Devices replica_devices(Devices devices) {
  if (devices.empty()) return all_devices();
  std::ranges::transform(devices, devices.begin(), with_number);
  check(devices);
  return devices;
}

}  // namespace lockstep
