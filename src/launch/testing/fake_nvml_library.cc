// A fake NVML library with two GPUs, the second of which reports less, for the
// tests of gpu_inventory.h. With LOCKSTEP_FAKE_NVML=broken it fails to start.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kNotSupported = 3;
constexpr int kDriverNotLoaded = 9;
int devices[2];

bool is_second(const void* device) { return device == &devices[1]; }

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int nvmlInit_v2() {
  const char* mode = std::getenv("LOCKSTEP_FAKE_NVML");
  return mode != nullptr && std::strcmp(mode, "broken") == 0 ? kDriverNotLoaded
                                                             : 0;
}
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int) { return "Driver Not Loaded"; }
int nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
  std::snprintf(text, bytes, "580.95.05");
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &devices[index];
  return 0;
}
int nvmlDeviceGetName(void*, char* text, unsigned bytes) {
  std::snprintf(text, bytes, "NVIDIA Imaginary 8 GB");
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  constexpr unsigned long long kGibibyte = 1ULL << 30;
  memory[0] = 8 * kGibibyte;
  memory[1] = 6 * kGibibyte;
  memory[2] = 2 * kGibibyte;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* device, unsigned* rates) {
  if (is_second(device)) return kNotSupported;
  rates[0] = 87;
  rates[1] = 40;
  return 0;
}
int nvmlDeviceGetTemperature(void* device, unsigned, unsigned* celsius) {
  if (is_second(device)) return kNotSupported;
  *celsius = 54;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count,
                                            void* infos) {
  struct Info {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
  };
  if (is_second(device)) return kNotSupported;
  auto* const all = static_cast<Info*>(infos);
  all[0] = {4711, 1ULL << 30, 0, 0};
  all[1] = {4712, ~0ULL, 0, 0};
  *count = 2;
  return 0;
}

}  // extern "C"
#pragma GCC visibility pop
