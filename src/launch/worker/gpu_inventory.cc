#include "src/launch/worker/gpu_inventory.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <set>
#include <string_view>

namespace lockstep {
namespace {

// As in NVML's header. Its functions return 0 on success.
using Device = struct nvmlDevice_st*;
struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;  // all bits set: not reported
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned kCelsiusOfGpu = 0;
constexpr int kSuccess = 0;
constexpr unsigned kMostProcesses = 256;

class Nvml {
 public:
  explicit Nvml(const char* library)
      : handle_(::dlopen(library, RTLD_NOW | RTLD_LOCAL), close) {}
  ~Nvml() {
    if (auto* const stop = find<int()>("nvmlShutdown"); started_ && stop)
      stop();
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool is_there() const { return handle_ != nullptr; }

  // Why NVML cannot be used; "" when it can.
  std::string start() {
    auto* const begin = find<int()>("nvmlInit_v2");
    if (begin == nullptr) return "the library of the NVIDIA driver is too old";
    const int result = begin();
    started_ = result == kSuccess;
    if (started_) return {};
    auto* const text_of = find<const char*(int)>("nvmlErrorString");
    return text_of ? text_of(result) : fmt::format("NVML's error {}", result);
  }

  // Whether the function `name` exists and succeeds.
  template <class... Arguments>
  bool ask(const char* name, Arguments... arguments) const {
    auto* const function = find<int(Arguments...)>(name);
    return function != nullptr && function(arguments...) == kSuccess;
  }

 private:
  static void close(void* handle) {
    if (handle != nullptr) ::dlclose(handle);
  }

  // Null when the library lacks it.
  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(handle_.get(), name));
  }

  std::unique_ptr<void, void (*)(void*)> handle_;
  bool started_ = false;
};

std::vector<GpuProcess> processes_on(const Nvml& nvml, Device device) {
  std::array<ProcessInfo, kMostProcesses> infos{};
  unsigned count = kMostProcesses;
  std::vector<GpuProcess> processes;
  if (!nvml.ask("nvmlDeviceGetComputeRunningProcesses_v3", device, &count,
                infos.data()))
    return processes;
  for (unsigned i = 0; i < count && i < kMostProcesses; ++i) {
    GpuProcess process{.pid = infos[i].pid, .bytes = infos[i].used_bytes};
    if (*process.bytes == ~0ULL) process.bytes.reset();
    processes.push_back(process);
  }
  return processes;
}

std::optional<GpuState> state_of(const Nvml& nvml, unsigned index) {
  Device device = nullptr;
  if (!nvml.ask("nvmlDeviceGetHandleByIndex_v2", index, &device))
    return std::nullopt;
  GpuState gpu;
  gpu.index = static_cast<int>(index);
  std::array<char, 96> name{};
  if (nvml.ask("nvmlDeviceGetName", device, name.data(),
               static_cast<unsigned>(name.size() - 1)))
    gpu.name = name.data();
  if (Memory memory{}; nvml.ask("nvmlDeviceGetMemoryInfo", device, &memory)) {
    gpu.total_bytes = memory.total;
    gpu.used_bytes = memory.used;
  }
  if (Utilization busy{};
      nvml.ask("nvmlDeviceGetUtilizationRates", device, &busy))
    gpu.busy_percent = busy.gpu;
  if (unsigned celsius = 0;
      nvml.ask("nvmlDeviceGetTemperature", device, kCelsiusOfGpu, &celsius))
    gpu.celsius = celsius;
  gpu.processes = processes_on(nvml, device);
  return gpu;
}

std::string_view first_of(std::string_view list) {
  return list.substr(0, list.find(','));
}

}  // namespace

GpuInventory look_at_gpus(const char* library) {
  GpuInventory inventory;
  Nvml nvml(library);
  if (!nvml.is_there()) {
    inventory.problem = "there is no NVIDIA driver";
    return inventory;
  }
  inventory.problem = nvml.start();
  if (!inventory.problem.empty()) return inventory;
  std::array<char, 80> version{};
  if (nvml.ask("nvmlSystemGetDriverVersion", version.data(),
               static_cast<unsigned>(version.size() - 1)))
    inventory.driver = version.data();
  unsigned count = 0;
  if (!nvml.ask("nvmlDeviceGetCount_v2", &count))
    inventory.problem = "the NVIDIA driver does not say how many GPUs it has";
  for (unsigned index = 0; index < count; ++index)
    if (auto gpu = state_of(nvml, index))
      inventory.gpus.push_back(std::move(*gpu));
  return inventory;
}

std::string describe(const GpuState& gpu) {
  constexpr double kGibibyte = 1 << 30;
  std::string text = fmt::format(
      "{}, {:.1f} of {:.1f} GiB used", gpu.name.empty() ? "a GPU" : gpu.name,
      static_cast<double>(gpu.used_bytes) / kGibibyte,
      static_cast<double>(gpu.total_bytes) / kGibibyte);
  if (gpu.busy_percent) text += fmt::format(", {} % busy", *gpu.busy_percent);
  if (gpu.celsius) text += fmt::format(", {} °C", *gpu.celsius);
  if (!gpu.processes.empty())
    text += fmt::format(", {} process{}", gpu.processes.size(),
                        gpu.processes.size() == 1 ? "" : "es");
  return text;
}

int count_visible(int count, const std::optional<std::string>& visible) {
  if (!visible) return count;
  std::set<std::string_view> seen;
  std::string_view rest = *visible;
  while (!rest.empty()) {
    const std::string_view entry = first_of(rest);
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    int index = 0;
    const char* const end = entry.data() + entry.size();
    const auto [stop, error] = std::from_chars(entry.data(), end, index);
    const bool is_number = error == std::errc() && stop == end;
    // Other entries are identifiers of devices or of device partitions.
    if (entry.empty() || (is_number && (index < 0 || index >= count))) break;
    // CUDA sees no device when one is named twice.
    if (!seen.insert(entry).second) return 0;
  }
  return static_cast<int>(seen.size());
}

int visible_gpus(const EnvironmentLookup& lookup) {
  return count_visible(static_cast<int>(look_at_gpus().gpus.size()),
                       lookup("CUDA_VISIBLE_DEVICES"));
}

}  // namespace lockstep
