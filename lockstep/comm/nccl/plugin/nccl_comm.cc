// NCCL takes three things of a communicator as they are, for as long as it
// lives: the place where a split puts it, its name, and that no two threads ask
// for its state at once (both would end the thread that made it). A Comm keeps
// them.
#include "lockstep/comm/nccl/plugin/nccl_comm.h"

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/data_type.h"

namespace lockstep::nccl_comm {
namespace {

struct Comm {
  std::mutex mutex;
  ncclComm_t nccl = nullptr;  // of a split: null until the parent is done
  std::string name;
  // While this is being split off, which the parent's state tells.
  std::shared_ptr<Comm> parent;
  // What was split off and may still be in the making. Those that were given up
  // in that time can only end with this.
  std::vector<std::shared_ptr<Comm>> children;
  bool given_up = false;
};

// What the table's pointers point to.
struct Handle {
  std::shared_ptr<Comm> comm;
};

Comm& of(LockstepGpuComm* comm) {
  return *reinterpret_cast<Handle*>(comm)->comm;
}

// Older ones have no name in them.
template <class Config>
void set_name(Config& config, const char* name) {
  if constexpr (requires { config.commName = name; }) config.commName = name;
}

// Of a communicator that shares nothing with its parent: sharing would end one
// with the other.
ncclConfig_t config_of(const Comm& comm) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 0;
  set_name(config, comm.name.c_str());
  return config;
}

// Where a split's communicator is put, by a thread of NCCL's.
ncclComm_t place_of(Comm& comm) {
  return std::atomic_ref(comm.nccl).load(std::memory_order_acquire);
}

Result own_state(ncclComm_t nccl, Outcome* outcome) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(nccl, &state);
  return result_of(asked == ncclSuccess ? state : asked,
                   "ncclCommGetAsyncError", outcome);
}

// With the mutex held, as for all that follows.
Result state_of(Comm& comm, Outcome* outcome) {
  if (comm.parent != nullptr) {
    const std::lock_guard lock(comm.parent->mutex);
    // Once that is gone, this is as it will ever be.
    if (comm.parent->nccl != nullptr) {
      const Result making = own_state(comm.parent->nccl, outcome);
      if (making != kGpuDone) return making;
    }
    comm.parent.reset();
  }
  const ncclComm_t nccl = place_of(comm);
  if (nccl == nullptr)
    return tell(kGpuFailed, "ncclCommSplit made no communicator", outcome);
  return own_state(nccl, outcome);
}

// ncclCommAbort() and not ncclCommDestroy(), which waits for the ranks of this
// host: nothing that is under way here is aborted that the caller still wants.
void end(Comm& comm) {
  std::vector<std::shared_ptr<Comm>> children;
  {
    const std::lock_guard lock(comm.mutex);
    // This joins the thread that splits off children: their places are filled.
    const ncclComm_t nccl = place_of(comm);
    if (nccl != nullptr) static_cast<void>(ncclCommAbort(nccl));
    comm.nccl = nullptr;
    comm.parent.reset();
    children.swap(comm.children);
  }
  for (const auto& child : children)
    if (child->given_up) end(*child);
}

// Leaves what is still being split off to its parent, whose end comes first to
// the thread that makes it.
bool give_up_in_the_making(Comm& comm) {
  const std::lock_guard lock(comm.mutex);
  const std::shared_ptr<Comm> parent = comm.parent;
  if (parent == nullptr) return false;
  const std::lock_guard parents_lock(parent->mutex);
  Outcome ignored{};
  if (parent->nccl == nullptr ||
      own_state(parent->nccl, &ignored) != kGpuNotYet)
    return false;
  comm.parent.reset();
  comm.given_up = true;
  return true;
}

// NCCL's number of a DataType's.
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
  // Of what is done in place, one of the two may be left out.
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
  return {ncclInvalidArgument, "an operation that NCCL has not"};
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
    auto made = std::make_shared<Comm>();
    made->name = config->name == nullptr ? "" : config->name;
    std::unique_ptr<Handle> handle(new Handle{made});
    ncclUniqueId id{};
    std::memcpy(&id, config->id, sizeof id);
    ncclConfig_t how = config_of(*made);
    const Result result =
        result_of(ncclCommInitRankConfig(&made->nccl, config->size, id,
                                         config->rank, &how),
                  "ncclCommInitRankConfig", outcome);
    // An error leaves one behind when it comes late.
    if (result != kGpuDone && result != kGpuNotYet) {
      if (made->nccl != nullptr) static_cast<void>(ncclCommAbort(made->nccl));
      return result;
    }
    *comm = reinterpret_cast<LockstepGpuComm*>(handle.release());
    return kGpuDone;
  });
}

Result split(LockstepGpuComm* parent, std::int32_t color, std::int32_t key,
             LockstepGpuComm** comm, Outcome* outcome) {
  return guarded(outcome, [&] {
    const std::shared_ptr<Comm>& from = reinterpret_cast<Handle*>(parent)->comm;
    const std::lock_guard lock(from->mutex);
    auto made = std::make_shared<Comm>();
    made->name = from->name;
    made->parent = from;
    made->given_up = color < 0;  // takes part, but gets nothing
    from->children.push_back(made);
    std::unique_ptr<Handle> handle(color < 0 ? nullptr : new Handle{made});
    ncclConfig_t how = config_of(*made);
    const Result result = result_of(
        ncclCommSplit(from->nccl, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key,
                      &made->nccl, &how),
        "ncclCommSplit", outcome);
    if (result != kGpuDone && result != kGpuNotYet) {
      made->given_up = true;
      made->parent.reset();
      return result;
    }
    *comm = reinterpret_cast<LockstepGpuComm*>(handle.release());
    return kGpuDone;
  });
}

Result state(LockstepGpuComm* comm, Outcome* outcome) {
  return guarded(outcome, [&] {
    Comm& asked = of(comm);
    const std::lock_guard lock(asked.mutex);
    return state_of(asked, outcome);
  });
}

void abort(LockstepGpuComm* comm) {
  const std::unique_ptr<Handle> handle(reinterpret_cast<Handle*>(comm));
  Outcome ignored{};
  guarded(&ignored, [&] {
    Comm& ended = *handle->comm;
    if (!give_up_in_the_making(ended)) end(ended);
    return kGpuDone;
  });
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
        start(place_of(used), *call, reinterpret_cast<cudaStream_t>(stream));
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
    // Where nothing can be registered NCCL says success, and gives no handle.
    // An error is this rank's alone: to go on without would make its memory
    // unlike that of the others, of which NCCL does not say what comes.
    const Result result =
        result_of(ncclCommRegister(place_of(used), memory, bytes, handle),
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
    static_cast<void>(ncclCommDeregister(place_of(used), handle));
    return kGpuDone;
  });
#else
  static_cast<void>(comm);
#endif
}

}  // namespace lockstep::nccl_comm
