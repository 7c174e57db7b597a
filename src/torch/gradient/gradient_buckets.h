// Where the gradients of a BucketPlan are while they are reduced: each bucket
// is a list of buffers, reduced as one operation.
//
// Where the group reduces lists where they lie (reduces_in_place()), a large
// gradient stays where autograd put it: in memory that the heap's allocator
// served, and that .grad goes on to own. Only a gradient whose storage another
// tensor has too is copied: reducing it in place would change what is
// still flowing backward, or another parameter's gradient.
//
// All others are copied into a flat block, and .grad becomes its slot of it:
// small gradients, for which a copy is cheaper than a piece of their own, and
// every gradient where the group wants one block. A slot has the parameter's
// own strides where these are dense, row-major ones otherwise: the layout that
// autograd gives a gradient.
//
// A block has one element more. In the last bucket's, ranks tell each other
// that not all of their gradients arrived: at no cost to a step in which all
// did.
//
// A communication hook is given flat blocks of gradients and nothing else: then
// all are copied, without gaps, and that element travels by itself.
//
// On a GPU, too, all are copied, into a block there: a bucket's by one kernel,
// once it has them all. The element is the host's and travels by itself, since
// to ask the device would make the host wait for it.
//
// Threads: single-threaded, as the reducer that owns it.
// Errors:  InvalidArgument naming the parameter whose gradient is sparse, is
//          gone or has another shape.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/buffer.h"
#include "lockstep/comm/process_group.h"
#include "src/planning/bucket_plan.h"
#include "src/torch/device/device_streams.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {

class GradientBuckets {
 public:
  enum class Layout { kFast, kFlat };

  // Allocates from `group`, zeroed. `plan` must not be empty.
  GradientBuckets(std::span<const at::Tensor> parameters,
                  const BucketPlan& plan, ProcessGroup& group,
                  Layout layout = Layout::kFast);

  // At the beginning of a pass, before take(): gives each gradient memory of
  // its own that lies in the slot of another parameter, where other code has
  // put it.
  void move_strangers_out(std::span<const at::Tensor> tensors);

  // Takes the .grad of `tensor`, the parameter of this number, into its bucket:
  // where it is, or into its slot, which becomes its .grad.
  void take(std::size_t parameter, const at::Tensor& tensor,
            const std::string& name);
  // To be called once all gradients of a bucket were taken, before it travels,
  // by the thread on whose current stream it does.
  void pack(std::size_t bucket);

  // What travels for this bucket.
  std::span<const Buffer> buffers(std::size_t bucket) const {
    return buffers_[bucket];
  }

  // Of flat buckets: all gradients of one, and one of them as a view of it.
  const at::Tensor& flat(std::size_t bucket) const { return flats_[bucket]; }
  const at::Tensor& slot(std::size_t parameter) const {
    return slots_[parameter].given();
  }
  // What travels besides, after the last bucket, and whether it has to.
  Buffer completeness() const;
  bool completeness_travels_alone() const { return completeness_is_alone_; }

  // After all buckets have travelled: from here on, gradients are only .grad's,
  // used on the current stream.
  void let_go();

  // Before the last bucket travels: whether this rank has all its gradients.
  void declare_complete();
  void declare_incomplete();
  // After it has: whether some rank has not.
  bool some_rank_is_incomplete() const;

 private:
  bool stays_in_place(const at::Tensor& parameter, std::size_t bytes,
                      ProcessGroup& group) const;
  void add_bucket(const BucketPlan::Bucket& bucket,
                  std::span<const at::Tensor> parameters, ProcessGroup& group);
  struct SlotOffset {
    std::size_t parameter, elements;
  };
  void add_slots(const at::Tensor& block, std::span<const SlotOffset> in_block,
                 std::span<const at::Tensor> parameters);
  void hold(std::size_t parameter, const at::Tensor& gradient);

  // Gradients that are still to be copied into a GPU's block, and the streams
  // on which they became final.
  struct Copies {
    std::vector<at::Tensor> slots, gradients;
  };
  struct Packing {
    void add(const at::Tensor& slot, const at::Tensor& gradient);

    DeviceStreams streams;
    Copies of_equal_strides, others;
  };

  Layout layout_;
  bool completeness_is_alone_ = false;
  std::vector<std::vector<Buffer>> buffers_;  // by bucket
  std::vector<at::Tensor> flats_;             // in each one's block
  std::vector<Packing> packings_;             // by bucket
  // By parameter: its slot, which a program may move by set_data() while it is
  // .grad, and a tensor without memory if the gradient is reduced where it
  // lies; and what of buffers_ describes it.
  std::vector<AnchoredTensor> slots_;
  std::vector<std::pair<std::size_t, std::size_t>> pieces_;
  std::vector<at::Tensor> held_;  // gradients on their way
  at::Tensor incomplete_;         // of the host: the last block's last element
};

}  // namespace lockstep
