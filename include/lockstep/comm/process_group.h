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

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/buffer.h"
#include "lockstep/comm/work.h"

namespace lockstep {

struct CallOptions {
  // How long the operation may take; the group's default when empty.
  std::optional<std::chrono::nanoseconds> timeout{};
  // A name for this call in messages, for example "gradients of layer 3".
  std::string_view label{};
  // For buffers on a GPU: the cudaStream_t in whose order the operation begins,
  // and which Work::wait() makes wait. Null: the thread's,
  // which is LibTorch's current stream.
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

class GroupCore;

class ProcessGroup {
 public:
  static constexpr std::chrono::minutes kDefaultTimeout{30};

  // Users call init_process_group(), new_group() or split().
  explicit ProcessGroup(std::unique_ptr<GroupCore> core);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // This process's rank in the group; -1 if it is not a member.
  int rank() const { return rank_; }
  int size() const { return size_; }
  // For messages: "default", "[0,2]", ….
  const std::string& name() const;
  bool is_member() const { return rank_ >= 0; }
  // "shm", …; "none" if this process is not, or no longer, a member, and in a
  // forked child. If buffers on a GPU have another backend, this is the CPU's.
  std::string backend() const;
  // How long an operation may take unless its call says otherwise.
  std::chrono::nanoseconds timeout() const;
  // How long this process has waited for operations of all its groups since it
  // joined the job.
  std::chrono::nanoseconds time_waited() const;

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

  // Memory of `bytes` bytes, 64-byte aligned and zeroed, in which this group's
  // collectives are fastest. It is freed with the pointer, which may outlive
  // the group. Throws InvalidArgument for more bytes than can be addressed,
  // std::bad_alloc when memory is full.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

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

  // The part that Lockstep's own layers call.
  GroupCore& core() const { return *core_; }

 private:
  const std::unique_ptr<GroupCore> core_;
  const int rank_;
  const int size_;
};

}  // namespace lockstep
