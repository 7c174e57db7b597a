// A group of ranks that talk: one method a collective, and messages between
// two.
//
// Every rank of the group must call the same collectives in the same order.
// Each method checks its arguments, starts the operation and returns a Work;
// `group.all_reduce(…).wait()` is the synchronous form. Memory behind buffers
// must stay alive until the Work is done.
//
//     std::vector<float> gradient = …;
//     group->all_reduce(view(gradient), ReduceOp::kAverage).wait();
//
// Where a method takes Buffers, a list of them is one operation. Buffers of one
// operation have one type; those that are written overlap no other, but that
// the own block may be in place: the input of all_gather and gather and the
// output of scatter and reduce_scatter may be this rank's block of the other.
//
// Threads: methods may be called from any thread; the order of the collectives
//          is what must agree between ranks, so callers on several threads need
//          an order of their own.
// Errors:  InvalidArgument at once, for arguments that can never work, for a
//          group that was destroyed and for one that this rank is no member of,
//          and in a forked child; everything else from Work::wait().
// Source:  the names and meanings are torch.distributed's; the uneven ones are
//          MPI's (MPI_Allgatherv, …) on lists of buffers.
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
#include "lockstep/comm/backend.h"
#include "lockstep/comm/duplicates.h"
#include "lockstep/comm/world.h"

namespace lockstep {

struct CallOptions {
  // How long the operation may take; the group's default when empty.
  std::optional<std::chrono::nanoseconds> timeout{};
  // A name for this call in messages, for example "gradients of layer 3".
  std::string_view place{};
  // For buffers on a GPU: the cudaStream_t in whose order the operation begins,
  // and which Work::wait() holds up. Null: the thread's, see current_stream.h.
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

  // `backend` is null exactly when this process is no member; identity.rank is
  // then -1.
  ProcessGroup(std::shared_ptr<Backend> backend, GroupIdentity identity,
               std::chrono::nanoseconds timeout = kDefaultTimeout,
               std::shared_ptr<World> world = nullptr);

  // Makes the backend for a rank's buffers on `device`, together with all other
  // ranks of the group.
  using MakeDeviceBackend =
      std::function<std::shared_ptr<Backend>(Device device)>;
  // Waits for nobody; the pointer may outlive the group.
  using AllocateOnDevice = std::function<std::shared_ptr<std::byte>(
      Device device, std::size_t bytes)>;
  // From now on buffers on a GPU are another backend's, which `make` makes at
  // the first operation that has some; `allocate` is allocate_on()'s.
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
  // "shm", …; "none" where there is no membership any more, or none ever. Where
  // a GPU's buffers have one of their own, that of all others.
  std::string backend() const;
  std::chrono::nanoseconds timeout() const { return timeout_; }
  // Throws InvalidArgument in a forked child, which is not the rank.
  void check_process() const;
  // What sub-groups are made from; null for a group that was made by hand.
  const std::shared_ptr<World>& world() const { return world_; }

  // Copies rank `root`'s elements over every other rank's, in place.
  Work broadcast(Buffers buffers, int root, const CallOptions& options = {});

  // Combines the elements of all ranks, in place. The ranks are added in one
  // fixed balanced tree, ((0+1)+(2+3))+…, so every rank gets the same bits, run
  // after run; float16 and bfloat16 are summed in float32 and rounded once.
  Work all_reduce(Buffers buffers, ReduceOp op,
                  const CallOptions& options = {});

  // The same for rank `root` alone; the other ranks' elements stay.
  Work reduce(Buffers buffers, ReduceOp op, int root,
              const CallOptions& options = {});

  // Fills `outputs` with every rank's `inputs`, in rank order; outputs[i] holds
  // size() times as many elements as inputs[i].
  Work all_gather(Buffers inputs, Buffers outputs,
                  const CallOptions& options = {});

  // The same where ranks bring different numbers of elements: outputs[r] holds
  // as many as rank r's `input`, and every rank gives the same counts.
  Work all_gather_v(const Buffer& input, Buffers outputs,
                    const CallOptions& options = {});

  // The same as all_gather for rank `root` alone; elsewhere `outputs` is
  // ignored.
  Work gather(Buffers inputs, Buffers outputs, int root,
              const CallOptions& options = {});

  // Gives rank r the r-th of size() blocks of rank `root`'s `inputs`; elsewhere
  // `inputs` is ignored.
  Work scatter(Buffers inputs, Buffers outputs, int root,
               const CallOptions& options = {});

  // Combines all ranks' `inputs` and gives rank r the r-th of size() blocks.
  Work reduce_scatter(Buffers inputs, Buffers outputs, ReduceOp op,
                      const CallOptions& options = {});

  // The same with blocks of different sizes: inputs[r] is rank r's, and every
  // rank gives the same counts.
  Work reduce_scatter_v(Buffers inputs, const Buffer& output, ReduceOp op,
                        const CallOptions& options = {});

  // Combines all ranks' `gradients` where this rank is to update `parameters`,
  // calls `update` with them, and gives all ranks what it changed: a sharded
  // optimizer's step in one pass over memory. Does nothing, with
  // update.carried_out false on every rank, where the group does not reach all
  // buffers where they lie. `gradients` stay as they are. `update` must stay
  // alive until the Work is done.
  Work sharded_update(Buffers gradients, Buffers parameters, ReduceOp op,
                      ShardUpdate& update, const CallOptions& options = {});

  // Sends block r of `inputs` to rank r, and gets block r of `outputs` from it.
  Work all_to_all(Buffers inputs, Buffers outputs,
                  const CallOptions& options = {});

  // The same with blocks of different sizes: inputs[r] goes to rank r, and
  // outputs[r] comes from it, where it has as many elements.
  Work all_to_all_v(Buffers inputs, Buffers outputs,
                    const CallOptions& options = {});

  // Completes when every rank has called it.
  Work barrier(const CallOptions& options = {});

  // Messages. Those between two ranks with one tag arrive in the order in which
  // they were sent. A receive takes exactly as many elements, of the type, as
  // were sent; anything else is a Mismatch and ends the group. Tags count from
  // 0. A send may complete before its message was received.
  Work isend(const Buffer& buffer, int to, int tag = 0,
             const CallOptions& options = {});
  Work irecv(const Buffer& buffer, int from, int tag = 0,
             const CallOptions& options = {});
  // The same, waited for. recv returns the rank that sent.
  void send(const Buffer& buffer, int to, int tag = 0,
            const CallOptions& options = {});
  int recv(const Buffer& buffer, int from = kAnySource, int tag = 0,
           const CallOptions& options = {});
  // Starts them all, in any order without deadlock; works[i] is messages[i]'s.
  std::vector<Work> batch_isend_irecv(std::span<const Message> messages,
                                      const CallOptions& options = {});

  // Another order of collectives among the same ranks: what is started there
  // need not be started at the same point of this group's on every rank, nor
  // waits for it. For buffers on the CPU. The two share connections, memory and
  // their end; a group that is dropped, not left, lasts as long as they. Every
  // rank calls this at the same point; letting go of the pointer gives the
  // duplicate back, for another that is asked for. One of a duplicate is one of
  // its group. Null where the backend has no such thing, which is `reference`.
  // See Duplicates.
  std::shared_ptr<ProcessGroup> duplicate();

  // Memory in which this group's collectives are fastest; see Backend.
  std::shared_ptr<std::byte> allocate(std::size_t bytes) {
    return member()->allocate(bytes);
  }

  // The same on a device: `bytes` bytes, zeroed, aligned for any element. Of a
  // GPU it is memory that NCCL reaches without copies in this group's
  // collectives, in which then every rank must give such memory, or none; not
  // in messages, nor in other groups, to which it is memory like any other.
  // Waits for no rank.
  //
  // It is freed with the pointer, which may outlive the group, and lives until
  // then whatever becomes of that. Who lets go of it has nothing under way on
  // the device that uses it. Once it has been in use it is freed by the group's
  // thread, when no operation of the group is under way, or when the group
  // ends. That may keep the group's next start(), as cudaFree does, until the
  // device is done with what it was given; nobody waits for a rank that is
  // gone.
  //
  // Errors: InvalidArgument where there is no such GPU, or none that this group
  // can use; SystemError (ENOMEM) where the device is full.
  std::shared_ptr<std::byte> allocate_on(Device device, std::size_t bytes);

  // The heap that such memory comes from, if it does; whether lists of buffers
  // are reduced where they lie. See Backend.
  std::shared_ptr<Heap> heap() { return member()->heap(); }
  bool reduces_in_place() { return member()->reduces_in_place(); }

  // Makes those of `graph` the collectives that this group is given from now on
  // while the stream of `options` is captured; to be called by every rank when
  // the capture has begun. Before it ends their works are waited for; nobody
  // leaves the group before. Throws what has ended the group on GPUs. That
  // ends, with InvalidArgument from wait(), where messages or replays are
  // captured, or collectives for a graph that was not attached. See
  // captured_graph.h.
  void attach(const std::shared_ptr<CapturedGraph>& graph,
              const CallOptions& options = {});

  // Gives the device once more what was captured, in the order of this group's
  // collectives, and of the stream as they are. The group ends, with
  // InvalidArgument from wait(), where the graph is attached to another. Of a
  // graph without collectives it is the launch alone.
  Work replay(const std::shared_ptr<CapturedGraph>& graph,
              const CallOptions& options = {});

  // Ends every operation in flight on all ranks with an error that gives
  // `reason`; the group is unusable afterwards. Never blocks. In a forked child
  // this and leave() tell nothing: the rank is the parent.
  void abort(std::string_view reason) noexcept;

  // Leaves the group, even while the caller still holds it or a Work of it:
  // every later call is an InvalidArgument, what is in flight on this rank ends
  // with an error, and other ranks that wait for this one get PeerFailure. A
  // Work that was done stays done. Waits for no rank beyond a short goodbye on
  // GPUs. (A group that is dropped instead leaves once the last Work of it is
  // gone.)
  void leave() noexcept;

 private:
  Work run(Operation&& operation, const CallOptions& options);
  Work start(Backend& backend, Operation& operation);
  Work start_recorded(Backend& backend, Operation& operation);
  // Throws InvalidArgument when `backend` cannot carry it out.
  void check_supported(const Backend& backend,
                       const Operation& operation) const;
  // The one for buffers on `device`, made if need be; null where such buffers
  // are the same one's as all others. Throws why it could not be made, every
  // time.
  std::shared_ptr<Backend> device_backend(Device device);
  // A copy of backend_, InvalidArgument when there is none.
  std::shared_ptr<Backend> member() const;
  [[noreturn]] void refuse_call() const;

  const OwnProcess process_;
  const GroupIdentity identity_;
  const std::chrono::nanoseconds timeout_;
  const std::shared_ptr<World> world_;
  // Null where nobody keeps a record: there is no world, or no membership.
  const std::shared_ptr<GroupRecorder> recorder_;
  // A sequence number and its start are one step.
  mutable Mutex start_order_;
  std::shared_ptr<Backend> backend_ LOCKSTEP_GUARDED_BY(start_order_);
  // Of a duplicate: its group's, the end of which would be its own.
  std::shared_ptr<Backend> of_group_ LOCKSTEP_GUARDED_BY(start_order_);
  std::uint64_t sequence_ LOCKSTEP_GUARDED_BY(start_order_) = 0;
  // The same backends again: aborting must not wait for a start.
  mutable Mutex abort_mutex_;
  std::vector<std::shared_ptr<Backend>> abortable_
      LOCKSTEP_GUARDED_BY(abort_mutex_);
  std::optional<std::string> aborted_ LOCKSTEP_GUARDED_BY(abort_mutex_);
  bool left_ LOCKSTEP_GUARDED_BY(abort_mutex_) = false;
  std::shared_ptr<Backend> device_backend_ LOCKSTEP_GUARDED_BY(abort_mutex_);
  std::exception_ptr device_error_ LOCKSTEP_GUARDED_BY(abort_mutex_);
  // Held while that is made, which may wait for other ranks.
  Mutex making_;
  MakeDeviceBackend make_device_backend_ LOCKSTEP_GUARDED_BY(making_);
  AllocateOnDevice allocate_on_device_ LOCKSTEP_GUARDED_BY(abort_mutex_);
  std::atomic<std::uint64_t> messages_{0};
  Duplicates duplicates_;
};

}  // namespace lockstep
