// A group of ranks that talk: one method a collective.
//
// Every rank of the group must call the same operations in the same order.
// Each method checks its arguments, starts the operation and returns a Work;
// `group.all_reduce(…).wait()` is the synchronous form. Memory behind buffers
// must stay alive until the Work is done.
//
//     std::vector<float> gradient = …;
//     group->all_reduce(view(gradient), ReduceOp::kAverage).wait();
//
// Threads: methods may be called from any thread; the order of the calls is
//          what must agree between ranks, so callers on several threads need
//          an order of their own.
// Errors:  InvalidArgument at once, for arguments that can never work;
//          everything else from Work::wait().
#pragma once

#include <chrono>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/comm/backend.h"

namespace lockstep {

struct CallOptions {
  // How long the operation may take; the group's default when empty.
  std::optional<std::chrono::nanoseconds> timeout{};
  // A name for this call in messages, for example "gradients of layer 3".
  std::string_view place{};
};

class ProcessGroup {
 public:
  static constexpr std::chrono::minutes kDefaultTimeout{30};

  ProcessGroup(std::shared_ptr<Backend> backend, GroupIdentity identity,
               std::chrono::nanoseconds timeout = kDefaultTimeout);

  int rank() const { return identity_.rank; }
  int size() const { return identity_.size; }
  const std::string& name() const { return identity_.name; }
  std::string_view backend() const { return backend_->name(); }
  std::chrono::nanoseconds timeout() const { return timeout_; }

  // Copies rank `root`'s elements over every other rank's, in place.
  Work broadcast(const Buffer& buffer, int root, CallOptions options = {});
  Work broadcast(std::span<const Buffer> buffers, int root,
                 CallOptions options = {});

  // Combines the elements of all ranks, in place. The ranks are added in one
  // fixed balanced tree, ((0+1)+(2+3))+…, so every rank gets the same bits, run
  // after run; float16 and bfloat16 are summed in float32 and rounded once.
  Work all_reduce(const Buffer& buffer, ReduceOp op, CallOptions options = {});
  Work all_reduce(std::span<const Buffer> buffers, ReduceOp op,
                  CallOptions options = {});

  // Fills `output` with every rank's `input`, in rank order; `output` holds
  // size() times as many elements.
  Work all_gather(const Buffer& input, const Buffer& output,
                  CallOptions options = {});
  Work all_gather(std::span<const Buffer> inputs,
                  std::span<const Buffer> outputs, CallOptions options = {});

  // Completes when every rank has called it.
  Work barrier(CallOptions options = {});

  // Memory in which this group's collectives are fastest; see Backend.
  std::shared_ptr<std::byte> allocate(std::size_t bytes) {
    return backend_->allocate(bytes);
  }

  // Ends every operation in flight on all ranks with an error that gives
  // `reason`; the group is unusable afterwards. Never blocks.
  void abort(std::string_view reason) noexcept { backend_->abort(reason); }

 private:
  Work run(Operation operation, const CallOptions& options);
  void validate(const Operation& operation) const;

  std::shared_ptr<Backend> backend_;
  GroupIdentity identity_;
  std::chrono::nanoseconds timeout_;
  std::mutex start_order_;  // a sequence number and its start are one step
  std::uint64_t sequence_ = 0;
};

}  // namespace lockstep
