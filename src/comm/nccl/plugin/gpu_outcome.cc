#include "src/comm/nccl/plugin/gpu_outcome.h"

#include <array>
#include <cstdio>
#include <cstring>

namespace lockstep {
namespace {

// "13.0" of 13000.
std::array<char, 16> version_text(int version) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%d.%d", version / 1000,
                version % 1000 / 10);
  return text;
}

// Only another driver, or another choice of devices, helps.
bool is_of_the_driver(cudaError_t error) {
  return error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice ||
         error == cudaErrorStubLibrary ||
         error == cudaErrorCallRequiresNewerDriver ||
         error == cudaErrorSystemDriverMismatch ||
         error == cudaErrorSystemNotReady ||
         error == cudaErrorCompatNotSupportedOnDevice;
}

LockstepGpuResult no_driver(cudaError_t error, const char* name,
                            LockstepGpuOutcome* outcome) {
  const auto wanted = version_text(CUDART_VERSION);
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess) version = 0;
  cudaGetLastError();
  const auto had = version_text(version);
  char* text = outcome->text;
  constexpr std::size_t kBytes = sizeof outcome->text;
  if (version == 0)
    std::snprintf(text, kBytes,
                  "there is no NVIDIA driver here (%s: %s)\n  next:    install "
                  "the NVIDIA driver; this build needs CUDA %s's or newer",
                  name, cudaGetErrorString(error), wanted.data());
  else if (error == cudaErrorNoDevice)
    std::snprintf(text, kBytes,
                  "the NVIDIA driver offers no GPU (%s: %s)\n  next:    see "
                  "what nvidia-smi lists; CUDA_VISIBLE_DEVICES hides GPUs, and "
                  "so do containers that are started without them",
                  name, cudaGetErrorString(error));
  else if (version < CUDART_VERSION)
    std::snprintf(text, kBytes,
                  "the NVIDIA driver is CUDA %s's, which is too old (%s: %s)\n"
                  "  next:    install a newer NVIDIA driver; this build needs "
                  "CUDA %s's or newer",
                  had.data(), name, cudaGetErrorString(error), wanted.data());
  else
    std::snprintf(text, kBytes,
                  "the NVIDIA driver cannot be used (%s: %s)\n  next:    see "
                  "what nvidia-smi says; reinstall the NVIDIA driver where it "
                  "fails too",
                  name, cudaGetErrorString(error));
  return kGpuNoDriver;
}

bool is_of_a_capture(cudaError_t error) {
  return error >= cudaErrorStreamCaptureUnsupported &&
         error <= cudaErrorStreamCaptureWrongThread;
}

LockstepGpuResult kind_of(cudaError_t error) {
  if (is_of_a_capture(error)) return kGpuSpoiltCapture;
  if (error == cudaErrorMemoryAllocation) return kGpuNoMemory;
  if (error == cudaErrorInvalidValue || error == cudaErrorInvalidDevice ||
      error == cudaErrorInvalidResourceHandle)
    return kGpuMisuse;
  return kGpuFailed;
}

LockstepGpuResult kind_of(ncclResult_t result, const char* reason) {
  if (result == ncclRemoteError) return kGpuPeerLost;
  if (result == ncclInvalidArgument || result == ncclInvalidUsage)
    return kGpuMisuse;
  // NCCL has one result for all errors of CUDA.
  if (result == ncclUnhandledCudaError &&
      std::strstr(reason, "out of memory") != nullptr)
    return kGpuNoMemory;
  return kGpuFailed;
}

}  // namespace

LockstepGpuResult tell(LockstepGpuResult result, const char* text,
                       LockstepGpuOutcome* outcome) {
  std::snprintf(outcome->text, sizeof outcome->text, "%s", text);
  return result;
}

LockstepGpuResult result_of(cudaError_t error, const char* name,
                            LockstepGpuOutcome* outcome) {
  if (error == cudaSuccess) return kGpuDone;
  cudaGetLastError();
  if (error == cudaErrorNotReady) return kGpuNotYet;
  if (is_of_the_driver(error)) return no_driver(error, name, outcome);
  std::snprintf(outcome->text, sizeof outcome->text, "%s: %s", name,
                cudaGetErrorString(error));
  return kind_of(error);
}

LockstepGpuResult result_of(ncclResult_t result, const char* name,
                            LockstepGpuOutcome* outcome) {
  if (result == ncclSuccess) return kGpuDone;
  if (result == ncclInProgress) return kGpuNotYet;
  // The process's last error: it may be another thread's.
  const char* reason = ncclGetLastError(nullptr);
  if (reason == nullptr) reason = "";
  std::snprintf(outcome->text, sizeof outcome->text, "%s: %s%s%s", name,
                ncclGetErrorString(result),
                *reason == '\0' ? "" : "; NCCL: ", reason);
  return kind_of(result, reason);
}

}  // namespace lockstep
