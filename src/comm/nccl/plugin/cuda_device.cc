#include "src/comm/nccl/plugin/cuda_device.h"

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <mutex>
#include <string>
#include <unordered_set>

namespace lockstep::cuda_device {
namespace {

cudaStream_t of(LockstepGpuStream* stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}

cudaEvent_t of(LockstepGpuEvent* event) {
  return reinterpret_cast<cudaEvent_t>(event);
}

// CUDA keeps an error for the next query; errors of the functions that return
// void are dropped.
void drop(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
}

Result make_stream(cudaStream_t* stream, Outcome* outcome) {
  int least = 0;
  int greatest = 0;
  const Result known =
      result_of(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                "cudaDeviceGetStreamPriorityRange", outcome);
  if (known != kGpuDone) return known;
  return result_of(
      cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, greatest),
      "cudaStreamCreateWithPriority", outcome);
}

// The memory that NCCL did not allocate, and so must not free.
class PlainMemory {
 public:
  // Never destroyed: memory may be released at program exit.
  static PlainMemory& of_process() {
    static auto& memory = *new PlainMemory;
    return memory;
  }

  void add(void* memory) {
    const std::lock_guard lock(mutex_);
    all_.insert(memory);
  }
  bool take(void* memory) {
    const std::lock_guard lock(mutex_);
    return all_.erase(memory) > 0;
  }

 private:
  std::mutex mutex_;
  std::unordered_set<void*> all_;
};

Result allocate_plain(void** memory, std::size_t bytes, Outcome* outcome) {
  const Result result =
      result_of(cudaMalloc(memory, bytes), "cudaMalloc", outcome);
  if (result != kGpuDone) return result;
  try {
    PlainMemory::of_process().add(*memory);
  } catch (...) {
    drop(cudaFree(*memory));
    throw;
  }
  return kGpuDone;
}

Result allocate_any(void** memory, std::size_t bytes, Outcome* outcome) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  if (ncclMemAlloc(memory, bytes) == ncclSuccess && *memory != nullptr)
    return kGpuDone;
  cudaGetLastError();
#endif
  return allocate_plain(memory, bytes, outcome);
}

// On its own stream: the default stream would wait for the caller's work.
Result zero(void* memory, std::size_t bytes, Outcome* outcome) {
  cudaStream_t stream = nullptr;
  const Result made = make_stream(&stream, outcome);
  if (made != kGpuDone) return made;
  Result result = result_of(cudaMemsetAsync(memory, 0, bytes, stream),
                            "cudaMemsetAsync", outcome);
  if (result == kGpuDone)
    result = result_of(cudaStreamSynchronize(stream), "cudaStreamSynchronize",
                       outcome);
  drop(cudaStreamDestroy(stream));
  return result;
}

// Whether this process has a context on the device. Only the driver knows; its
// library is loaded already if it exists.
bool was_used(std::int32_t device) {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return false;
  using GetState = int (*)(int device, unsigned* flags, int* active);
  const auto get_state =
      reinterpret_cast<GetState>(::dlsym(driver, "cuDevicePrimaryCtxGetState"));
  unsigned flags = 0;
  int active = 0;
  const bool told =
      get_state != nullptr && get_state(device, &flags, &active) == 0;
  ::dlclose(driver);
  return told && active != 0;
}

}  // namespace

Result count(std::int32_t* devices, Outcome* outcome) {
  int found = 0;
  const Result result =
      result_of(cudaGetDeviceCount(&found), "cudaGetDeviceCount", outcome);
  *devices = found;
  return result;
}

// The UUID, as nvidia-smi -L writes it, without hyphens. A slice of a GPU has
// its own.
Result name(std::int32_t device, char* text, std::size_t bytes,
            Outcome* outcome) {
  cudaDeviceProp properties{};
  const Result result = result_of(cudaGetDeviceProperties(&properties, device),
                                  "cudaGetDeviceProperties", outcome);
  if (result != kGpuDone) return result;
  std::string name = "GPU-";
  for (const char byte : properties.uuid.bytes) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x",
                  static_cast<unsigned>(static_cast<unsigned char>(byte)));
    name += digits.data();
  }
  std::snprintf(text, bytes, "%s", name.c_str());
  return kGpuDone;
}

// The device of this thread's last use(), which has created its context: to
// choose it anew for each call would take several calls of the driver.
thread_local std::int32_t chosen_by_this_thread = -1;

Result use(std::int32_t device, std::int32_t* previous, Outcome* outcome) {
  if (previous != nullptr) {
    const Result result =
        result_of(cudaGetDevice(previous), "cudaGetDevice", outcome);
    if (result != kGpuDone) return result;
    if (*previous == device && chosen_by_this_thread == device) return kGpuDone;
    if (!was_used(*previous)) *previous = -1;
  }
  const Result result =
      result_of(cudaSetDevice(device), "cudaSetDevice", outcome);
  if (result == kGpuDone) chosen_by_this_thread = device;
  return result;
}

Result stream_create(LockstepGpuStream** stream, Outcome* outcome) {
  cudaStream_t made = nullptr;
  const Result result = make_stream(&made, outcome);
  *stream = reinterpret_cast<LockstepGpuStream*>(made);
  return result;
}

void stream_destroy(LockstepGpuStream* stream) {
  drop(cudaStreamDestroy(of(stream)));
}

Result stream_wait(LockstepGpuStream* stream, LockstepGpuEvent* event,
                   Outcome* outcome) {
  return result_of(cudaStreamWaitEvent(of(stream), of(event), 0),
                   "cudaStreamWaitEvent", outcome);
}

// The default stream cannot be captured, and the query fails while another
// stream is captured.
Result stream_capture(LockstepGpuStream* stream, std::uint64_t* capture,
                      Outcome* outcome) {
  *capture = 0;
  if (stream == nullptr) return kGpuDone;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  const Result result =
      result_of(cudaStreamGetCaptureInfo(of(stream), &status, &id),
                "cudaStreamGetCaptureInfo", outcome);
  if (result != kGpuDone) return result;
  if (status == cudaStreamCaptureStatusInvalidated)
    return tell(kGpuSpoiltCapture, "the stream's capture is invalidated",
                outcome);
  if (status == cudaStreamCaptureStatusActive) *capture = id;
  return kGpuDone;
}

Result event_create(LockstepGpuEvent** event, Outcome* outcome) {
  cudaEvent_t made = nullptr;
  const Result result =
      result_of(cudaEventCreateWithFlags(&made, cudaEventDisableTiming),
                "cudaEventCreateWithFlags", outcome);
  *event = reinterpret_cast<LockstepGpuEvent*>(made);
  return result;
}

void event_destroy(LockstepGpuEvent* event) {
  drop(cudaEventDestroy(of(event)));
}

Result event_record(LockstepGpuEvent* event, LockstepGpuStream* stream,
                    Outcome* outcome) {
  return result_of(cudaEventRecord(of(event), of(stream)), "cudaEventRecord",
                   outcome);
}

// While another thread captures a graph, the query would invalidate that
// capture.
Result event_query(LockstepGpuEvent* event, Outcome* outcome) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  drop(cudaThreadExchangeStreamCaptureMode(&mode));
  const Result result =
      result_of(cudaEventQuery(of(event)), "cudaEventQuery", outcome);
  drop(cudaThreadExchangeStreamCaptureMode(&mode));
  return result;
}

Result allocate(void** memory, std::size_t bytes, Outcome* outcome) {
  return guarded(outcome, [&] {
    void* made = nullptr;
    Result result = allocate_any(&made, bytes, outcome);
    if (result != kGpuDone) return result;
    result = zero(made, bytes, outcome);
    if (result == kGpuDone)
      *memory = made;
    else
      release(made);
    return result;
  });
}

void release(void* memory) {
  if (memory == nullptr) return;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  if (!PlainMemory::of_process().take(memory)) {
    static_cast<void>(ncclMemFree(memory));
    cudaGetLastError();
    return;
  }
#else
  PlainMemory::of_process().take(memory);
#endif
  drop(cudaFree(memory));
}

Result copy(void* to, const void* from, std::size_t bytes,
            LockstepGpuStream* stream, Outcome* outcome) {
  return result_of(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, of(stream)),
      "cudaMemcpyAsync", outcome);
}

}  // namespace lockstep::cuda_device
