#include "src/torch/tensor/tensor_call.h"

#include <ATen/core/Formatting.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <list>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/base/mutex.h"
#include "src/comm/operation/pending_work.h"
#include "src/torch/device/device_streams.h"
#include "src/torch/tensor/tensor_fault.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

std::string text_of(Argument name) {
  return name.index < 0 ? name.name : c10::str(name.name, "[", name.index, "]");
}

// Whether the operation can use the memory directly.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && holds_its_elements(tensor);
}

at::Tensor empty_contiguous(const at::Tensor& like) {
  return at::empty_like(like, {}, at::MemoryFormat::Contiguous);
}

// `to`, filled with the elements of `from`; autograd does not record it.
at::Tensor copy_of(const at::Tensor& from, const at::Tensor& to) {
  const c10::AutoGradMode no_grad(false);
  return to.copy_(from);
}

// Peers write without autograd's knowledge: without this call, a backward pass
// that needs the old values would use the new ones.
void tell_autograd(const at::Tensor& written) {
  if (!written.is_inference()) written.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

// The tensors of an operation, and its pending copies of results.
struct TensorCall::Held {
  std::vector<at::Tensor> used;
  std::vector<WriteBack> write_backs;

  bool is_empty() const { return used.empty(); }
  bool is_on_gpu() const { return !is_empty() && used.front().is_cuda(); }
};

namespace {

// Keeps the memory of GPU operations that no thread has waited for until they
// are done; later calls check that. On the CPU such memory is never freed:
// peers may write to it as long as they live.
class Parked {
 public:
  void add(Work work, std::shared_ptr<void> held) {
    const MutexLock lock(mutex_);
    works_.emplace_back(std::move(work), std::move(held));
  }
  void sweep() {
    std::list<std::pair<Work, std::shared_ptr<void>>> done;
    const MutexLock lock(mutex_);
    for (auto next = works_.begin(); next != works_.end();) {
      const auto entry = next++;
      if (entry->first.done()) done.splice(done.end(), works_, entry);
    }
  }

  static Parked& all() {
    static auto* const parked = new Parked();  // outlives static tensors
    return *parked;
  }

 private:
  Mutex mutex_;
  std::list<std::pair<Work, std::shared_ptr<void>>> works_
      LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace

// Keeps the tensors of an operation, and copies its results back once.
class TensorCall::TensorWork : public PendingWork {
 public:
  TensorWork(Work work, Held held)
      : work_(std::move(work)),
        held_(std::make_unique<Held>(std::move(held))),
        is_on_gpu_(held_->is_on_gpu()) {}

  // Memory that peers may still write to must not be freed. Waiting for them
  // here could deadlock, if they wait for a message that this thread is about
  // to send. A forked child has copies, which it drops at its end.
  ~TensorWork() override {
    if (held_->is_empty() || (!is_of_parent() && work_.done())) return;
    if (is_on_gpu_ && !is_of_parent())
      Parked::all().add(work_, std::move(held_));
    else
      static_cast<void>(held_.release());
  }

  void wait(std::uint64_t, std::optional<Deadline> deadline) override {
    work_.wait(deadline);
    const MutexLock lock(mutex_);
    bring_back();
  }
  void synchronize(std::uint64_t, std::optional<Deadline> deadline) override {
    work_.synchronize(deadline);
    const MutexLock lock(mutex_);
    bring_back();
    if (brought_back_) brought_back_->synchronize();
  }
  // A stream that LibTorch does not know cannot wait for another stream's
  // copies: then the host waits.
  void order_before(std::uint64_t ticket, void* stream) override {
    if (copies())
      synchronize(ticket, std::nullopt);
    else
      work_.order_before(stream);
  }
  bool completes_in_wait() const override { return !is_on_gpu_; }
  bool done(std::uint64_t) override { return work_.done(); }
  std::vector<int> missing(std::uint64_t) override { return work_.missing(); }
  int source_rank(std::uint64_t) override { return work_.source_rank(); }

 private:
  bool copies() {
    const MutexLock lock(mutex_);
    return brought_back_ || !held_->write_backs.empty();
  }

  // Copies on the current stream, or orders it after the stream that did.
  void bring_back() LOCKSTEP_REQUIRES(mutex_) {
    if (brought_back_) {
      brought_back_->block(current_stream_on(brought_back_->device()));
      return;
    }
    for (const auto& [to, from] : held_->write_backs) copy_of(from, to);
    if (!held_->write_backs.empty() && is_on_gpu_) {
      for (const auto& [to, from] : held_->write_backs)
        keep_for_current_stream(from);
      const at::Device device = held_->used.front().device();
      brought_back_.emplace(device.type());
      brought_back_->record(current_stream_on(device));
    }
    *held_ = {};
  }

  const Work work_;
  Mutex mutex_;
  std::unique_ptr<Held> held_ LOCKSTEP_GUARDED_BY(mutex_);
  const bool is_on_gpu_;
  // Set on a GPU if there was something to copy.
  std::optional<c10::Event> brought_back_ LOCKSTEP_GUARDED_BY(mutex_);
};

TensorCall::TensorCall(const ProcessGroup& group, const char* operation)
    : group_(group), operation_(operation) {
  if (!group.is_member())
    throw InvalidArgument(c10::str(
        operation, ": this rank is not a member of group \"", group.name(),
        "\""
        "\n  next:    check is_member() before calling into a group made by "
        "new_group()"));
}

void TensorCall::refuse(Argument name, const std::string& why,
                        const std::string& next) const {
  throw InvalidArgument(c10::str(operation_, ": ", text_of(name), " ", why,
                                 " (rank ", group_.rank(), " of ",
                                 group_.size(), ", group \"", group_.name(),
                                 "\")\n  next:    ", next));
}

void TensorCall::check(const at::Tensor& tensor, Argument name) const {
  const at::ScalarType type =
      tensor.defined() ? tensor.scalar_type() : at::kFloat;
  if (const auto fault = fault_of_reduced(tensor, type))
    refuse(name, fault->why, fault->next);
}

void TensorCall::check_writable(const at::Tensor& tensor, Argument name) {
  check(tensor, name);
  if (const auto fault = fault_of_written(tensor))
    refuse(name, fault->why, fault->next);
  if (tensor.numel() == 0) return;
  const void* const first = tensor.const_data_ptr();
  if (!written_.insert(first).second)
    refuse(name, "begins where another tensor that is written begins",
           "give each its own memory");
}

Buffer TensorCall::use(const at::Tensor& contiguous) {
  used_.push_back(contiguous);
  return view(contiguous);
}

Buffer TensorCall::read(const at::Tensor& tensor, Argument name) {
  check(tensor, name);
  if (!is_plain(tensor)) return use(copy_of(tensor, empty_contiguous(tensor)));
  // Not view(): a request for writable memory would materialise a lazy clone.
  used_.push_back(tensor);
  return {const_cast<void*>(tensor.const_data_ptr()), tensor.numel(),
          data_type_of(tensor.scalar_type()), buffer_device(tensor)};
}

Buffer TensorCall::write(const at::Tensor& tensor, Argument name) {
  check_writable(tensor, name);
  if (is_plain(tensor)) {
    tell_autograd(tensor);
    return use(tensor);
  }
  write_backs_.push_back({tensor, empty_contiguous(tensor)});
  return use(write_backs_.back().from);
}

Buffer TensorCall::update(const at::Tensor& tensor, Argument name) {
  const Buffer buffer = write(tensor, name);
  if (!is_plain(tensor)) copy_of(tensor, write_backs_.back().from);
  return buffer;
}

at::Tensor TensorCall::block_for(at::TensorList tensors) {
  const std::int64_t elements = tensors.front().numel();
  return at::empty({static_cast<std::int64_t>(tensors.size()), elements},
                   tensors.front().options().requires_grad(false));
}

Buffer TensorCall::pack(at::TensorList tensors, const char* name) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    check(tensors[i], {name, static_cast<std::int64_t>(i)});
  const at::Tensor block = block_for(tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    copy_of(tensors[i],
            block[static_cast<std::int64_t>(i)].view(tensors[i].sizes()));
  return use(block);
}

Buffer TensorCall::unpack(at::TensorList tensors, const char* name) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    check_writable(tensors[i], {name, static_cast<std::int64_t>(i)});
  const at::Tensor block = block_for(tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    write_backs_.push_back(
        {tensors[i],
         block[static_cast<std::int64_t>(i)].view(tensors[i].sizes())});
  return use(block);
}

void TensorCall::check_type(const at::Tensor& tensor, Argument name,
                            const at::Tensor& expected,
                            Argument expected_name) const {
  check(tensor, name);
  check(expected, expected_name);
  if (tensor.scalar_type() != expected.scalar_type())
    refuse(name,
           c10::str("is of type ", tensor.scalar_type(), ", expected ",
                    expected.scalar_type(), " as ", text_of(expected_name)),
           "convert one of them with to()");
}

void TensorCall::check_like(const at::Tensor& tensor, Argument name,
                            const at::Tensor& expected,
                            Argument expected_name) const {
  check_type(tensor, name, expected, expected_name);
  if (tensor.sizes() != expected.sizes())
    refuse(name,
           c10::str("has shape ", tensor.sizes(), ", expected ",
                    expected.sizes(), " as ", text_of(expected_name)),
           "give both the same shape; view() and reshape() change a shape");
}

void TensorCall::check_one_a_rank(at::TensorList tensors,
                                  const char* name) const {
  if (static_cast<int>(tensors.size()) != group_.size())
    refuse({name},
           c10::str("has ", tensors.size(), " tensors, expected ",
                    group_.size(), ", one per rank"),
           "pass a list of group.size() tensors, in rank order");
}

void TensorCall::check_blocks(const at::Tensor& blocks, Argument blocks_name,
                              const at::Tensor& own, Argument own_name) const {
  check_type(blocks, blocks_name, own, own_name);
  const std::int64_t expected = own.numel() * group_.size();
  if (blocks.numel() == expected) return;
  std::vector<std::int64_t> shape = own.sizes().vec();
  if (shape.empty()) shape.push_back(1);
  shape.front() *= group_.size();
  refuse(
      blocks_name,
      c10::str("has shape ", blocks.sizes(), ", ", blocks.numel(),
               " elements, expected ", expected, ": ", group_.size(),
               " ranks times the ", own.numel(), " of ", text_of(own_name)),
      c10::str("pass for example a tensor of shape ", at::IntArrayRef(shape)));
}

Work TensorCall::finish(Work started) {
  Parked::all().sweep();
  if (write_backs_.empty() && started.done()) return started;
  return Work(
      std::make_shared<TensorWork>(
          std::move(started), Held{std::move(used_), std::move(write_backs_)}),
      0);
}

}  // namespace lockstep
