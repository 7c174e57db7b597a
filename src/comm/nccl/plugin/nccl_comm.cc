// NCCL has two requirements for as long as a communicator lives: its name must
// stay valid, and no two threads may query its state at once (both would join
// the thread that made it). A Comm ensures both.
#include "src/comm/nccl/plugin/nccl_comm.h"

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "lockstep/base/buffer.h"

namespace lockstep::nccl_comm {
namespace {

// The type behind the table's pointers.
struct Comm {
  std::mutex mutex;
  ncclComm_t nccl = nullptr;
  std::string name;
};

Comm& of(LockstepGpuComm* comm) { return *reinterpret_cast<Comm*>(comm); }

// Older versions lack the name.
template <class Config>
void set_name(Config& config, const char* name) {
  if constexpr (requires { config.commName = name; }) config.commName = name;
}

ncclConfig_t config_of(const Comm& comm) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  set_name(config, comm.name.c_str());
  return config;
}

// NCCL's number for a DataType's.
ncclDataType_t nccl_type(std::int32_t type) {
  constexpr std::array kTypes{ncclFloat32,  ncclFloat64, ncclFloat16,
                              ncclBfloat16, ncclInt8,    ncclUint8,
                              ncclInt32,    ncclInt64};
  static_assert(static_cast<int>(DataType::kFloat32) == 0 &&
                static_cast<int>(DataType::kBFloat16) == 3 &&
                static_cast<int>(DataType::kUInt8) == 5 &&
                static_cast<int>(DataType::kInt64) == kTypes.size() - 1);
  return type >= 0 && type < static_cast<std::int32_t>(kTypes.size())
             ? kTypes[static_cast<std::size_t>(type)]
             : ncclNumTypes;  // which NCCL refuses
}

ncclRedOp_t nccl_sum(LockstepGpuSum sum) {
  switch (sum) {
    case kGpuSum:
      return ncclSum;
    case kGpuProduct:
      return ncclProd;
    case kGpuMin:
      return ncclMin;
    case kGpuMax:
      return ncclMax;
    case kGpuAverage:
      return ncclAvg;
  }
  return ncclNumOps;  // which NCCL refuses
}

// NCCL's function for `call`, and its name.
std::pair<ncclResult_t, const char*> start(ncclComm_t comm,
                                           const LockstepGpuCall& call,
                                           cudaStream_t stream) {
  const ncclDataType_t type = nccl_type(call.type);
  const ncclRedOp_t sum = nccl_sum(call.sum);
  const std::size_t count = call.count;
  // For calls in place, one of the two may be null.
  void* to = call.to != nullptr ? call.to : const_cast<void*>(call.from);
  const void* from = call.from != nullptr ? call.from : call.to;
  switch (call.kind) {
    case kGpuAllReduce:
      return {ncclAllReduce(from, to, count, type, sum, comm, stream),
              "ncclAllReduce"};
    case kGpuBroadcast:
      return {ncclBroadcast(from, to, count, type, call.peer, comm, stream),
              "ncclBroadcast"};
    case kGpuReduce:
      return {ncclReduce(from, to, count, type, sum, call.peer, comm, stream),
              "ncclReduce"};
    case kGpuAllGather:
      return {ncclAllGather(from, to, count, type, comm, stream),
              "ncclAllGather"};
    case kGpuReduceScatter:
      return {ncclReduceScatter(from, to, count, type, sum, comm, stream),
              "ncclReduceScatter"};
    case kGpuSend:
      return {ncclSend(from, count, type, call.peer, comm, stream), "ncclSend"};
    case kGpuReceive:
      return {ncclRecv(to, count, type, call.peer, comm, stream), "ncclRecv"};
  }
  return {ncclInvalidArgument, "NCCL lacks this operation"};
}

}  // namespace

Result unique_id(char* id, Outcome* outcome) {
  ncclUniqueId made{};
  static_assert(sizeof made == kGpuUniqueIdBytes);
  const Result result =
      result_of(ncclGetUniqueId(&made), "ncclGetUniqueId", outcome);
  std::memcpy(id, &made, sizeof made);
  return result;
}

Result create(const LockstepGpuCommConfig* config, LockstepGpuComm** comm,
              Outcome* outcome) {
  return guarded(outcome, [&] {
    auto made = std::make_unique<Comm>();
    made->name = config->name == nullptr ? "" : config->name;
    ncclUniqueId id{};
    std::memcpy(&id, config->id, sizeof id);
    ncclConfig_t how = config_of(*made);
    const Result result =
        result_of(ncclCommInitRankConfig(&made->nccl, config->size, id,
                                         config->rank, &how),
                  "ncclCommInitRankConfig", outcome);
    // A late error leaves a communicator behind.
    if (result != kGpuDone && result != kGpuNotYet) {
      if (made->nccl != nullptr) static_cast<void>(ncclCommAbort(made->nccl));
      return result;
    }
    *comm = reinterpret_cast<LockstepGpuComm*>(made.release());
    return kGpuDone;
  });
}

Result state(LockstepGpuComm* comm, Outcome* outcome) {
  return guarded(outcome, [&] {
    Comm& asked = of(comm);
    const std::lock_guard lock(asked.mutex);
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(asked.nccl, &state);
    return result_of(result == ncclSuccess ? state : result,
                     "ncclCommGetAsyncError", outcome);
  });
}

// With several ranks in one process, NCCL frees their resources when the last
// one calls this or destroy(); until then it needs only the Comm's name.
void abort(LockstepGpuComm* comm) {
  const std::unique_ptr<Comm> ended(&of(comm));
  static_cast<void>(ncclCommAbort(ended->nccl));
}

Result finalize(LockstepGpuComm* comm, Outcome* outcome) {
  return guarded(outcome, [&] {
    Comm& ended = of(comm);
    const std::lock_guard lock(ended.mutex);
    return result_of(ncclCommFinalize(ended.nccl), "ncclCommFinalize", outcome);
  });
}

// NCCL's threads of this rank serve the other ranks of the host until those
// have finalized; NCCL waits for these threads here.
void destroy(LockstepGpuComm* comm) {
  const std::unique_ptr<Comm> ended(&of(comm));
  static_cast<void>(ncclCommDestroy(ended->nccl));
}

Result group_begin(Outcome* outcome) {
  return result_of(ncclGroupStart(), "ncclGroupStart", outcome);
}

Result group_end(Outcome* outcome) {
  return result_of(ncclGroupEnd(), "ncclGroupEnd", outcome);
}

Result call(LockstepGpuComm* comm, const LockstepGpuCall* call,
            LockstepGpuStream* stream, Outcome* outcome) {
  return guarded(outcome, [&] {
    Comm& used = of(comm);
    const std::lock_guard lock(used.mutex);
    const auto [result, name] =
        start(used.nccl, *call, reinterpret_cast<cudaStream_t>(stream));
    return result_of(result, name, outcome);
  });
}

Result register_memory(LockstepGpuComm* comm, void* memory, std::size_t bytes,
                       void** handle, Outcome* outcome) {
  *handle = nullptr;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  return guarded(outcome, [&] {
    Comm& used = of(comm);
    const std::lock_guard lock(used.mutex);
    // If memory cannot be registered, NCCL reports success without a handle. An
    // error concerns this rank alone: continuing would leave its memory
    // unregistered unlike the others', for which NCCL does not define the
    // result.
    const Result result =
        result_of(ncclCommRegister(used.nccl, memory, bytes, handle),
                  "ncclCommRegister", outcome);
    if (result != kGpuDone) *handle = nullptr;
    return result;
  });
#else
  static_cast<void>(comm), static_cast<void>(memory), static_cast<void>(bytes);
  static_cast<void>(outcome);
  return kGpuDone;
#endif
}

void unregister_memory(LockstepGpuComm* comm, void* handle) {
  if (handle == nullptr) return;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  Outcome ignored{};
  guarded(&ignored, [&] {
    Comm& used = of(comm);
    const std::lock_guard lock(used.mutex);
    static_cast<void>(ncclCommDeregister(used.nccl, handle));
    return kGpuDone;
  });
#else
  static_cast<void>(comm);
#endif
}

}  // namespace lockstep::nccl_comm
