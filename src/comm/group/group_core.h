// What this rank is in a group: its backends, their order of operations, its
// recorder. ProcessGroup is what users call; Lockstep's own layers also call
// this part of it, by ProcessGroup::core().
//
// Threads: any thread, as ProcessGroup.
// Errors:  those of ProcessGroup.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "src/base/mutex.h"
#include "src/base/own_process.h"
#include "src/comm/group/duplicates.h"
#include "src/comm/operation/backend.h"
#include "src/comm/rendezvous/world.h"

namespace lockstep {

class GroupRecorder;

class GroupCore {
 public:
  // `backend` is null if and only if this process is not a member;
  // identity.rank is then -1.
  GroupCore(std::shared_ptr<Backend> backend, GroupIdentity identity,
            std::chrono::nanoseconds timeout = ProcessGroup::kDefaultTimeout,
            std::shared_ptr<World> world = nullptr);

  // Makes the backend for this rank's buffers on `device`, together with all
  // other ranks of the group.
  using MakeDeviceBackend =
      std::function<std::shared_ptr<Backend>(Device device)>;
  // Does not wait for other ranks; the pointer may outlive the group.
  using AllocateOnDevice = std::function<std::shared_ptr<std::byte>(
      Device device, std::size_t bytes)>;
  // From now on another backend handles buffers on a GPU; `make` makes it at
  // the first operation with such buffers. allocate_on() calls `allocate`.
  void set_device_backend(MakeDeviceBackend make,
                          AllocateOnDevice allocate = nullptr);
  ~GroupCore();
  GroupCore(const GroupCore&) = delete;
  GroupCore& operator=(const GroupCore&) = delete;

  const GroupIdentity& identity() const { return identity_; }
  bool is_member() const { return identity_.rank >= 0; }
  std::string backend_name() const;
  std::chrono::nanoseconds timeout() const { return timeout_; }
  // Throws InvalidArgument in a forked child, which is not the rank.
  void check_process() const;
  // Sub-groups are made from it; null for a group that was made without one.
  const std::shared_ptr<World>& world() const { return world_; }
  // This rank's backend for buffers on the CPU. Throws InvalidArgument if this
  // process is not, or no longer, a member.
  std::shared_ptr<Backend> member() const;

  // Checks `operation`, fills in the fields that all operations have, and
  // starts it.
  Work run(Operation&& operation, const CallOptions& options);
  // ProcessGroup's batch_isend_irecv().
  std::vector<Work> run_batch(std::span<const Message> messages,
                              const CallOptions& options);

  // A sharded optimizer's step in one pass over memory: combines all ranks'
  // `gradients` of the elements that this rank updates, calls `update` with
  // them, and gives the changed `parameters` to all ranks. If the group cannot
  // reach all buffers in place, it does nothing and leaves update.carried_out
  // false on every rank. `gradients` stay unchanged. `update` must stay alive
  // until the Work is done.
  Work sharded_update(Buffers gradients, Buffers parameters, ReduceOp op,
                      ShardUpdate& update, const CallOptions& options = {});

  // Another order of collectives among the same ranks: its collectives need not
  // start at the same point of this group's order on every rank, and do not
  // wait for this group's. For buffers on the CPU. The two share connections
  // and memory, and end together; a group that is dropped, not left, lives as
  // long as its duplicates. Every rank calls this at the same point; destroying
  // the pointer gives the duplicate back for reuse. A duplicate of a duplicate
  // belongs to the group. Null if the backend has no duplicates (`reference`).
  // See Duplicates.
  std::shared_ptr<ProcessGroup> duplicate();

  // Memory on a device: `bytes` bytes, zeroed, aligned for any element. On a
  // GPU, NCCL accesses this memory without copies in this group's collectives,
  // where either every rank or no rank must pass such memory; messages and
  // other groups treat it as ordinary memory. Does not wait for other ranks.
  //
  // It is freed with the pointer, which may outlive the group. The caller
  // destroys the pointer only when no work on the device uses the memory.
  // Memory that a collective has used is freed by the group's thread, when no
  // operation of the group is under way, or when the group ends. That may delay
  // the group's next start(), as cudaFree does, until the device has finished
  // its work; it never waits for a rank that is gone.
  //
  // Errors:  InvalidArgument if the GPU does not exist or this group cannot use
  //          GPUs; SystemError (ENOMEM) if the device is full.
  std::shared_ptr<std::byte> allocate_on(Device device, std::size_t bytes);

  // The heap from which allocate() serves; whether lists of buffers are reduced
  // in place. See Backend.
  std::shared_ptr<Heap> heap() { return member()->heap(); }
  bool reduces_in_place() { return member()->reduces_in_place(); }

  // Makes the collectives that this group starts from now on, while the stream
  // of `options` is captured, part of `graph`; every rank calls this when the
  // capture has begun. Each rank waits for their works, and stays in the group,
  // until the capture ends. Throws the error that has ended the group on GPUs.
  // Capturing messages, replays, or collectives without an attached graph ends
  // that group, with InvalidArgument from wait(). See captured_graph.h.
  void attach(const std::shared_ptr<CapturedGraph>& graph,
              const CallOptions& options = {});

  // Launches the captured graph again, in the order of this group's collectives
  // and of the stream. The group ends, with InvalidArgument from wait(), if the
  // graph is attached to another group. A graph without collectives is only
  // launched.
  Work replay(const std::shared_ptr<CapturedGraph>& graph,
              const CallOptions& options = {});

  // Counts a step for `lockstep status`; see Recorder.
  void count_reduced_pass();

  // leave() first calls `finish`, unless the returned pointer is destroyed
  // before or the group is aborted: for a thread of this process whose work
  // still needs the group. What `finish` throws is logged.
  std::shared_ptr<void> finish_before_leaving(std::function<void()> finish);

  // As in ProcessGroup.
  void abort(std::string_view reason) noexcept;
  void leave() noexcept;

 private:
  // The same as run() of an operation that was checked.
  Work run_valid(Operation& operation, const CallOptions& options);
  Work start(Backend& backend, Operation& operation);
  Work start_recorded(Backend& backend, Operation& operation);
  // Throws InvalidArgument when `backend` cannot carry it out.
  void check_supported(const Backend& backend,
                       const Operation& operation) const;
  // The backend for buffers on `device`, made if needed; null if the group's
  // backend handles them. If it could not be made, every call throws the
  // reason.
  std::shared_ptr<Backend> device_backend(Device device);
  [[noreturn]] void refuse_call() const;
  void run_finishes() noexcept;

  const ForkCheck process_;
  const GroupIdentity identity_;
  const std::chrono::nanoseconds timeout_;
  const std::shared_ptr<World> world_;
  // Null without a world, and if this process is not a member.
  const std::shared_ptr<GroupRecorder> recorder_;
  // Makes taking a sequence number and starting its operation one step.
  mutable Mutex start_order_;
  std::shared_ptr<Backend> backend_ LOCKSTEP_GUARDED_BY(start_order_);
  // Of a duplicate: its group's backend, whose end would end this one.
  std::shared_ptr<Backend> of_group_ LOCKSTEP_GUARDED_BY(start_order_);
  std::uint64_t sequence_ LOCKSTEP_GUARDED_BY(start_order_) = 0;
  // Copies of the backends: abort() must not wait for a start.
  mutable Mutex abort_mutex_;
  std::vector<std::shared_ptr<Backend>> abortable_
      LOCKSTEP_GUARDED_BY(abort_mutex_);
  std::optional<std::string> aborted_ LOCKSTEP_GUARDED_BY(abort_mutex_);
  bool left_ LOCKSTEP_GUARDED_BY(abort_mutex_) = false;
  std::vector<std::weak_ptr<std::function<void()>>> finishes_
      LOCKSTEP_GUARDED_BY(abort_mutex_);
  std::shared_ptr<Backend> device_backend_ LOCKSTEP_GUARDED_BY(abort_mutex_);
  std::exception_ptr device_error_ LOCKSTEP_GUARDED_BY(abort_mutex_);
  // Held while the device backend is made, which may wait for other ranks.
  Mutex making_;
  MakeDeviceBackend make_device_backend_ LOCKSTEP_GUARDED_BY(making_);
  AllocateOnDevice allocate_on_device_ LOCKSTEP_GUARDED_BY(abort_mutex_);
  std::atomic<std::uint64_t> messages_{0};
  Duplicates duplicates_;
};

// Makes a group of `identity.size` ranks in `world`, whose store all of them
// share; init_process_group uses it. `backend` is a name as in InitOptions.
std::shared_ptr<ProcessGroup> make_group(
    const std::string& backend, const GroupIdentity& identity,
    std::shared_ptr<World> world,
    std::optional<std::chrono::nanoseconds> timeout = {});

}  // namespace lockstep
