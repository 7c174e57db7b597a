#include "apps/trainer/loop/training_device.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/resource.h>

#include <charconv>
#include <cstdint>
#include <iomanip>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kCuda = "cuda";

// Empty for a name that is not a CUDA device.
std::optional<int> cuda_index(std::string_view name) {
  if (name == kCuda) return 0;
  if (!name.starts_with("cuda:")) return std::nullopt;
  name.remove_prefix(kCuda.size() + 1);
  int index = 0;
  const auto [end, error] =
      std::from_chars(name.data(), name.data() + name.size(), index);
  if (error != std::errc() || end != name.data() + name.size() || index < 0)
    return std::nullopt;
  return index;
}

[[noreturn]] void refuse(std::string_view name, const std::string& why,
                         const std::string& next) {
  throw InvalidArgument("cannot compute on the device " + std::string(name) +
                        ": " + why + "\n  next:    " + next);
}

std::int64_t peak_bytes(const c10::Device& device) {
  if (device.is_cpu()) {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return std::int64_t{usage.ru_maxrss} * 1024;
  }
  auto* const allocator =
      dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  LOCKSTEP_CHECK(allocator != nullptr, "a device without an allocator");
  return allocator->getDeviceStats(device.index()).allocated_bytes[0].peak;
}

}  // namespace

c10::Device training_device(std::string_view name) {
  if (name == "cpu") return c10::kCPU;
  const auto index = cuda_index(name);
  if (!index) refuse(name, "the name is unknown", "name cpu, cuda or cuda:N");
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA))
    refuse(name, "this LibTorch was built without CUDA",
           "build with a LibTorch that has CUDA: LOCKSTEP_TORCH=… ./dev "
           "build --cuda");
  const c10::DeviceIndex count =
      c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount();
  if (count == 0)
    refuse(name, "LibTorch sees no GPU",
           "see `lockstep doctor` for drivers and devices, and whether "
           "CUDA_VISIBLE_DEVICES hides them");
  if (*index >= count)
    refuse(name, "there are " + std::to_string(count) + ", numbered from 0",
           "start at most one rank per GPU on each host");
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(*index)};
}

std::vector<c10::Device> training_devices(std::string_view name, int replicas) {
  std::vector<c10::Device> devices;
  const c10::Device first = training_device(name);
  for (int replica = 0; replica < replicas; ++replica)
    devices.push_back(
        first.is_cpu()
            ? first
            : training_device("cuda:" +
                              std::to_string(first.index() + replica)));
  return devices;
}

std::string peak_memory_text(const std::vector<c10::Device>& devices) {
  std::string text = "memory at most:";
  std::string before;
  for (const c10::Device& device : devices) {
    std::ostringstream one;
    one << ' ' << device << ' ' << std::fixed << std::setprecision(2)
        << static_cast<double>(peak_bytes(device)) / (1 << 30) << " GiB";
    if (one.str() == before && device.is_cpu()) continue;
    text.append(before.empty() ? "" : ",").append(one.str());
    before = one.str();
  }
  return text;
}

void use_deterministic_kernels() {
  at::Context& context = at::globalContext();
  context.setBenchmarkCuDNN(false);
  context.setDeterministicCuDNN(true);
  context.setDeterministicAlgorithms(true, /*warn_only=*/true);
  context.setDeterministicFillUninitializedMemory(false);
}

}  // namespace lockstep
