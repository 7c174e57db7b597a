// The exported function of liblockstep_nccl.so.
#include <array>
#include <cstdio>

#include "src/comm/nccl/plugin/cuda_device.h"
#include "src/comm/nccl/plugin/nccl_comm.h"

namespace lockstep {
namespace {

// "CUDA 13.0, NCCL 2.28.3": the loaded NCCL, which may be LibTorch's.
const char* libraries() {
  static const std::array<char, 64> text = [] {
    int nccl = 0;
    if (ncclGetVersion(&nccl) != ncclSuccess) nccl = NCCL_VERSION_CODE;
    std::array<char, 64> made{};
    std::snprintf(made.data(), made.size(), "CUDA %d.%d, NCCL %d.%d.%d",
                  CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
                  nccl / 10000, nccl % 10000 / 100, nccl % 100);
    return made;
  }();
  return text.data();
}

LockstepGpuTable make_table() {
  return {.version = kGpuTableVersion,
          .libraries = libraries(),
          .device_count = cuda_device::count,
          .device_name = cuda_device::name,
          .use_device = cuda_device::use,
          .stream_create = cuda_device::stream_create,
          .stream_destroy = cuda_device::stream_destroy,
          .stream_wait = cuda_device::stream_wait,
          .stream_capture = cuda_device::stream_capture,
          .event_create = cuda_device::event_create,
          .event_destroy = cuda_device::event_destroy,
          .event_record = cuda_device::event_record,
          .event_query = cuda_device::event_query,
          .allocate = cuda_device::allocate,
          .release = cuda_device::release,
          .copy = cuda_device::copy,
          .unique_id = nccl_comm::unique_id,
          .comm_create = nccl_comm::create,
          .comm_state = nccl_comm::state,
          .comm_abort = nccl_comm::abort,
          .comm_finalize = nccl_comm::finalize,
          .comm_destroy = nccl_comm::destroy,
          .group_begin = nccl_comm::group_begin,
          .group_end = nccl_comm::group_end,
          .call = nccl_comm::call,
          .register_memory = nccl_comm::register_memory,
          .unregister_memory = nccl_comm::unregister_memory};
}

}  // namespace
}  // namespace lockstep

extern "C" __attribute__((visibility("default"))) const LockstepGpuTable*
lockstep_gpu() {
  static const LockstepGpuTable table = lockstep::make_table();
  return &table;
}
