// A group of ranks that communicate: one method per collective, and messages
// between two ranks.
//
// Every rank of the group must call the same collectives in the same order.
// Each method checks its arguments, starts the operation and returns a Work;
// `group.all_reduce(…).wait()` is the synchronous form. Memory behind buffers
// must stay alive until the Work is done.
//
//     std::vector<float> gradient = …;
//     group->all_reduce(view(gradient), ReduceOp::kAverage).wait();
//
// Where a method takes Buffers, a list of them is one operation. All buffers of
// an operation have one type; buffers that it writes overlap no other buffer,
// except that the own block may be in place: the input of all_gather and gather
// and the output of scatter and reduce_scatter may be this rank's block of the
// other list.
//
// Threads: methods may be called from any thread; the order of the collectives
//          must agree between ranks, so callers on several threads must order
//          their calls.
// Errors:  InvalidArgument at once for invalid arguments, for a destroyed
//          group, for a group that this rank is not a member of, and in a
//          forked child; all other errors from Work::wait().
// Source:  names and meanings are torch.distributed's; the uneven operations
//          are MPI's (MPI_Allgatherv, …) on lists of buffers.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/base/own_process.h"
#include "lockstep/comm/group/duplicates.h"
#include "lockstep/comm/operation/backend.h"
#include "lockstep/comm/rendezvous/world.h"

namespace lockstep {

struct CallOptions {
  // How long the operation may take; the group's default when empty.
  std::optional<std::chrono::nanoseconds> timeout{};
  // A name for this call in messages, for example "gradients of layer 3".
  std::string_view place{};
  // For buffers on a GPU: the cudaStream_t in whose order the operation begins,
  // and which Work::wait() makes wait. Null: the thread's, see
  // current_stream.h.
  void* stream = nullptr;
};

// One message of a batch.
struct Message {
  enum class Direction { kSend, kReceive };
  Direction direction = Direction::kSend;
  Buffer buffer{};
  int peer = 0;  // kAnySource in receives
  int tag = 0;
};

class CapturedGraph;
class GroupRecorder;

class ProcessGroup {
 public:
  static constexpr std::chrono::minutes kDefaultTimeout{30};

  // `backend` is null if and only if this process is not a member;
  // identity.rank is then -1.
  ProcessGroup(std::shared_ptr<Backend> backend, GroupIdentity identity,
               std::chrono::nanoseconds timeout = kDefaultTimeout,
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
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return identity_.rank; }
  int size() const { return identity_.size; }
  const std::string& name() const { return identity_.name; }
  const GroupIdentity& identity() const { return identity_; }
  bool is_member() const { return identity_.rank >= 0; }
  // "shm", …; "none" if this process is not, or no longer, a member. If buffers
  // on a GPU have another backend, this is the CPU's.
  std::string backend() const;
  std::chrono::nanoseconds timeout() const { return timeout_; }
  // Throws InvalidArgument in a forked child, which is not the rank.
  void check_process() const;
  // Sub-groups are made from it; null for a group that was made without one.
  const std::shared_ptr<World>& world() const { return world_; }

  // Copies rank `root`'s elements over every other rank's, in place.
  Work broadcast(Buffers buffers, int root, const CallOptions& options = {});

  // Combines the elements of all ranks, in place. The ranks are added in one
  // fixed balanced tree, ((0+1)+(2+3))+…, so every rank gets the same bits, run
  // after run; float16 and bfloat16 are summed in float32 and rounded once.
  Work all_reduce(Buffers buffers, ReduceOp op,
                  const CallOptions& options = {});

  // The same for rank `root` alone; the other ranks' elements stay unchanged.
  Work reduce(Buffers buffers, ReduceOp op, int root,
              const CallOptions& options = {});

  // Fills `outputs` with every rank's `inputs`, in rank order; outputs[i] holds
  // size() times as many elements as inputs[i].
  Work all_gather(Buffers inputs, Buffers outputs,
                  const CallOptions& options = {});

  // The same for different numbers of elements per rank: outputs[r] holds as
  // many as rank r's `input`, and every rank passes the same counts.
  Work all_gather_v(const Buffer& input, Buffers outputs,
                    const CallOptions& options = {});

  // The same as all_gather for rank `root` alone; the other ranks' `outputs` is
  // ignored.
  Work gather(Buffers inputs, Buffers outputs, int root,
              const CallOptions& options = {});

  // Gives rank r the r-th of size() blocks of rank `root`'s `inputs`; the other
  // ranks' `inputs` is ignored.
  Work scatter(Buffers inputs, Buffers outputs, int root,
               const CallOptions& options = {});

  // Combines all ranks' `inputs` and gives rank r the r-th of size() blocks.
  Work reduce_scatter(Buffers inputs, Buffers outputs, ReduceOp op,
                      const CallOptions& options = {});

  // The same with blocks of different sizes: inputs[r] is rank r's block, and
  // every rank passes the same counts.
  Work reduce_scatter_v(Buffers inputs, const Buffer& output, ReduceOp op,
                        const CallOptions& options = {});

  // A sharded optimizer's step in one pass over memory: combines all ranks'
  // `gradients` of the elements that this rank updates, calls `update` with
  // them, and gives the changed `parameters` to all ranks. If the group cannot
  // reach all buffers in place, it does nothing and leaves update.carried_out
  // false on every rank. `gradients` stay unchanged. `update` must stay alive
  // until the Work is done.
  Work sharded_update(Buffers gradients, Buffers parameters, ReduceOp op,
                      ShardUpdate& update, const CallOptions& options = {});

  // Sends block r of `inputs` to rank r, and gets block r of `outputs` from it.
  Work all_to_all(Buffers inputs, Buffers outputs,
                  const CallOptions& options = {});

  // The same with blocks of different sizes: inputs[r] goes to rank r, and
  // outputs[r] comes from rank r, whose block for this rank must be as large.
  Work all_to_all_v(Buffers inputs, Buffers outputs,
                    const CallOptions& options = {});

  // Completes when every rank has called it.
  Work barrier(const CallOptions& options = {});

  // Messages between two ranks with one tag arrive in the order in which they
  // were sent. A receive must have the number of elements and the type that
  // were sent; otherwise it is a Mismatch and ends the group. Tags count from
  // 0. A send may complete before its message is received.
  Work isend(const Buffer& buffer, int to, int tag = 0,
             const CallOptions& options = {});
  Work irecv(const Buffer& buffer, int from, int tag = 0,
             const CallOptions& options = {});
  // The same, and wait for completion. recv returns the sender's rank.
  void send(const Buffer& buffer, int to, int tag = 0,
            const CallOptions& options = {});
  int recv(const Buffer& buffer, int from = kAnySource, int tag = 0,
           const CallOptions& options = {});
  // Starts all messages; no order of them deadlocks. works[i] belongs to
  // messages[i].
  std::vector<Work> batch_isend_irecv(std::span<const Message> messages,
                                      const CallOptions& options = {});

  // Another order of collectives among the same ranks: its collectives need not
  // start at the same point of this group's order on every rank, and do not
  // wait for this group's. For buffers on the CPU. The two share connections
  // and memory, and end together; a group that is dropped, not left, lives as
  // long as its duplicates. Every rank calls this at the same point; destroying
  // the pointer gives the duplicate back for reuse. A duplicate of a duplicate
  // belongs to the group. Null if the backend has no duplicates (`reference`).
  // See Duplicates.
  std::shared_ptr<ProcessGroup> duplicate();

  // Memory in which this group's collectives are fastest; see Backend.
  std::shared_ptr<std::byte> allocate(std::size_t bytes) {
    return member()->allocate(bytes);
  }

  // The same on a device: `bytes` bytes, zeroed, aligned for any element. On a
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

  // Ends every operation in flight on all ranks with an error that states
  // `reason`; the group is unusable afterwards. Never blocks. In a forked child
  // this and leave() notify no peer: the rank is the parent.
  void abort(std::string_view reason) noexcept;

  // Leaves the group, even while the caller still holds it or a Work of it:
  // every later call throws InvalidArgument, operations in flight on this rank
  // end with an error, and other ranks that wait for this rank get PeerFailure.
  // A completed Work stays complete. Does not wait for other ranks beyond a
  // short goodbye on GPUs. (A group that is dropped instead leaves once its
  // last Work is gone.)
  void leave() noexcept;

 private:
  Work run(Operation&& operation, const CallOptions& options);
  Work start(Backend& backend, Operation& operation);
  Work start_recorded(Backend& backend, Operation& operation);
  // Throws InvalidArgument when `backend` cannot carry it out.
  void check_supported(const Backend& backend,
                       const Operation& operation) const;
  // The backend for buffers on `device`, made if needed; null if the group's
  // backend handles them. If it could not be made, every call throws the
  // reason.
  std::shared_ptr<Backend> device_backend(Device device);
  // A copy of backend_; throws InvalidArgument if it is null.
  std::shared_ptr<Backend> member() const;
  [[noreturn]] void refuse_call() const;

  const OwnProcess process_;
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
  std::shared_ptr<Backend> device_backend_ LOCKSTEP_GUARDED_BY(abort_mutex_);
  std::exception_ptr device_error_ LOCKSTEP_GUARDED_BY(abort_mutex_);
  // Held while the device backend is made, which may wait for other ranks.
  Mutex making_;
  MakeDeviceBackend make_device_backend_ LOCKSTEP_GUARDED_BY(making_);
  AllocateOnDevice allocate_on_device_ LOCKSTEP_GUARDED_BY(abort_mutex_);
  std::atomic<std::uint64_t> messages_{0};
  Duplicates duplicates_;
};

}  // namespace lockstep
