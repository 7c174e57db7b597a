#include "src/torch/gradient/gradient_buckets.h"

#include <ATen/core/Formatting.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/base/round_up.h"
#include "src/comm/group/group_core.h"
#include "src/torch/tensor/heap_allocator.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

// Below this size LibTorch's copy costs more in dispatch than in copying.
constexpr std::size_t kSmallBytes = 32 * 1024;

// Of a bucket: shared memory has room to tell of a thousand.
constexpr std::size_t kMostBuffers = 1000;

std::vector<std::int64_t> row_major_strides(at::IntArrayRef sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

// Whether this process has used another GPU than this one.
bool uses_others(at::Device device) {
  const auto& cuda = at::detail::getCUDAHooks();
  const int count = c10::impl::VirtualGuardImpl(device.type()).deviceCount();
  for (int other = 0; other < count; ++other)
    if (other != device.index() &&
        cuda.hasPrimaryContext(static_cast<at::DeviceIndex>(other)))
      return true;
  return false;
}

// LibTorch keeps a GPU's memory that tensors have given back; whether it has
// been asked to let go of it. It would of every GPU's, and wait for each: where
// another replica of this process reduces on one already, for this replica.
bool empty_cache(at::Device device) {
  if (device.is_cpu() || uses_others(device)) return false;
  auto* const keeper =
      dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (keeper == nullptr) return false;
  keeper->emptyCache();
  return true;
}

std::shared_ptr<std::byte> allocate(std::size_t bytes, at::Device device,
                                    Device where, ProcessGroup& group) {
  try {
    return group.core().allocate_on(where, bytes);
  } catch (const SystemError& error) {
    if (error.error_number() != ENOMEM || !empty_cache(device)) throw;
  }
  return group.core().allocate_on(where, bytes);
}

// Zeroed, and where peers, or NCCL, reach it. A GPU's goes back to it once the
// device is done with all that it has been given: a plan has few blocks, and
// they stay.
at::Tensor new_block(std::int64_t elements, const at::TensorOptions& options,
                     Device where, ProcessGroup& group) {
  const at::Device device = options.device();
  auto memory =
      allocate(static_cast<std::size_t>(elements) * options.dtype().itemsize(),
               device, where, group);
  void* const data = memory.get();
  const auto give_back = [memory = std::move(memory), device](void*) mutable {
    if (!device.is_cpu()) await_device(device);
    memory.reset();
  };
  return at::from_blob(data, {elements}, give_back, options, device);
}

std::vector<std::int64_t> slot_strides(const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense()
             ? parameter.strides().vec()
             : row_major_strides(parameter.sizes());
}

// Whether the memory of both means the same elements.
bool lies_as(const at::Tensor& gradient, const at::Tensor& slot) {
  return holds_its_elements(gradient) &&
         torch::autograd::utils::obeys_layout_contract(gradient, slot);
}

bool can_be_reduced_in_place(const at::Tensor& gradient,
                             const at::Tensor& slot) {
  return gradient.is_cpu() && is_exclusive(gradient) && lies_as(gradient, slot);
}

bool is_in(const at::Tensor& slot, const at::Tensor& gradient) {
  return gradient.const_data_ptr() == slot.const_data_ptr() &&
         lies_as(gradient, slot);
}

// A view of `gradient` with the strides of `slot`, if its memory means the same
// elements. _foreach_copy_ is one kernel only where all strides are equal, also
// those of dimensions of size 1, in which the layouts of a 1 x 1 convolution
// differ.
at::Tensor with_strides_of(const at::Tensor& slot, const at::Tensor& gradient) {
  if (gradient.strides() == slot.strides() || !lies_as(gradient, slot))
    return gradient;
  return gradient.as_strided(slot.sizes(), slot.strides());
}

void check_gradient(const at::Tensor& gradient, const at::Tensor& slot,
                    const std::string& name) {
  const auto refuse = [&](const std::string& why, const char* next) {
    throw InvalidArgument("the gradient of parameter " + name +
                          " cannot be reduced: " + why +
                          "\n  next:    " + next);
  };
  if (!gradient.defined())
    refuse("its .grad was reset while backward ran",
           "do that after backward() has returned");
  if (gradient.layout() != at::kStrided)
    refuse("it is sparse",
           "set the option sparse_as_dense, or use dense gradients: "
           "EmbeddingOptions::sparse(false)");
  if (gradient.sizes() != slot.sizes())
    refuse(c10::str("its shape is ", gradient.sizes(), ", the parameter's was ",
                    slot.sizes()),
           "wrap the module anew after changing a parameter's shape");
  if (!slot.is_meta() && gradient.device() != slot.device())
    refuse(c10::str("it is on ", gradient.device(), ", the parameter was on ",
                    slot.device()),
           "move the module first and wrap it then");
  if (gradient.scalar_type() != slot.scalar_type())
    refuse(c10::str("its type is ", gradient.scalar_type(), ", expected ",
                    slot.scalar_type()),
           "say the type of gradients by set_grad_dtype() before wrapping the "
           "module");
}

void fill_slot(const at::Tensor& slot, const at::Tensor& gradient) {
  if (slot.nbytes() <= kSmallBytes && gradient.is_cpu() &&
      lies_as(gradient, slot))
    std::memcpy(slot.data_ptr(), gradient.const_data_ptr(), slot.nbytes());
  else
    slot.copy_(gradient);
}

}  // namespace

GradientBuckets::GradientBuckets(std::span<const at::Tensor> parameters,
                                 const BucketPlan& plan, ProcessGroup& group,
                                 Layout layout)
    : layout_(layout), slots_(parameters.size()), pieces_(parameters.size()) {
  LOCKSTEP_CHECK(!plan.buckets.empty(), "there is nothing to reduce");
  for (const BucketPlan::Bucket& bucket : plan.buckets)
    add_bucket(bucket, parameters, group);
}

bool GradientBuckets::stays_in_place(const at::Tensor& parameter,
                                     std::size_t bytes,
                                     ProcessGroup& group) const {
  return layout_ == Layout::kFast && parameter.is_cpu() &&
         group.core().reduces_in_place() && bytes >= kLeastHeapTensor;
}

// The flat block comes first in the bucket's list.
void GradientBuckets::add_bucket(const BucketPlan::Bucket& bucket,
                                 std::span<const at::Tensor> parameters,
                                 ProcessGroup& group) {
  const std::size_t element = size_of(bucket.type);
  const std::size_t alignment =
      layout_ == Layout::kFlat ? element : Heap::kAlignment;
  const auto options =
      at::TensorOptions()
          .dtype(scalar_type_of(bucket.type))
          .device(parameters[bucket.slots.front().parameter].device());
  std::vector<Buffer> list(1);
  std::vector<SlotOffset> in_block;
  std::size_t block_bytes = 0;
  for (const BucketPlan::Slot& slot : bucket.slots) {
    const at::Tensor& parameter = parameters[slot.parameter];
    pieces_[slot.parameter] = {buffers_.size(), 0};
    if (list.size() < kMostBuffers &&
        stays_in_place(parameter, slot.elements * element, group)) {
      slots_[slot.parameter] = AnchoredTensor(
          at::empty_strided(parameter.sizes(), slot_strides(parameter),
                            options.device(at::kMeta)));
      pieces_[slot.parameter].second = list.size();
      list.push_back({nullptr, static_cast<std::int64_t>(slot.elements),
                      bucket.type, bucket.device});
    } else {
      in_block.push_back({slot.parameter, block_bytes / element});
      block_bytes =
          round_up_to(alignment, block_bytes + slot.elements * element);
    }
  }
  const auto elements = static_cast<std::int64_t>(block_bytes / element);
  const at::Tensor block =
      new_block(elements + 1, options, bucket.device, group);
  add_slots(block, in_block, parameters);
  flats_.push_back(block.narrow(0, 0, elements));
  completeness_is_alone_ = layout_ == Layout::kFlat || !block.is_cpu();
  incomplete_ = block.is_cpu() ? block.narrow(0, elements, 1)
                               : at::zeros({1}, options.device(at::kCPU));
  list.front() = view(completeness_is_alone_ ? flats_.back() : block);
  buffers_.push_back(std::move(list));
  packings_.emplace_back();
}

// What is handed out are no views, as autograd calls them: those refuse
// detach_(), which optimizers do to gradients that they set to zero.
void GradientBuckets::add_slots(const at::Tensor& block,
                                std::span<const SlotOffset> in_block,
                                std::span<const at::Tensor> parameters) {
  for (const auto& [parameter, offset] : in_block)
    slots_[parameter] = AnchoredTensor(block.as_strided(
        parameters[parameter].sizes(), slot_strides(parameters[parameter]),
        static_cast<std::int64_t>(offset)));
}

void GradientBuckets::move_strangers_out(std::span<const at::Tensor> tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor& gradient = tensors[i].mutable_grad();
    if (!gradient.defined() || gradient.layout() != at::kStrided ||
        gradient.sizes() != slots_[i].place().sizes() ||
        slots_[i].is_home(gradient) || is_in(slots_[i].place(), gradient))
      continue;
    if (std::ranges::any_of(flats_, [&](const at::Tensor& block) {
          return gradient.is_alias_of(block);
        }))
      gradient = gradient.clone();
  }
}

void GradientBuckets::take(std::size_t parameter, const at::Tensor& tensor,
                           const std::string& name) {
  AnchoredTensor& anchored = slots_[parameter];
  const at::Tensor& slot = anchored.place();
  at::Tensor& gradient = tensor.mutable_grad();
  Packing& packing = packings_[pieces_[parameter].first];
  packing.streams.add_current(tensor.device());
  if (anchored.is_home(gradient)) return;
  check_gradient(gradient, slot, name);
  if (slot.is_meta()) {
    if (!can_be_reduced_in_place(gradient, slot))
      gradient = at::empty_strided(slot.sizes(), slot.strides(),
                                   slot.options().device(at::kCPU))
                     .copy_(gradient);
    return hold(parameter, gradient);
  }
  if (!is_in(slot, gradient)) {
    // A view of the same block in another order cannot be copied within it.
    const at::Tensor from =
        gradient.is_alias_of(slot) ? gradient.clone() : gradient;
    if (slot.is_cpu()) {
      fill_slot(slot, from);
    } else {
      packing.add(slot, with_strides_of(slot, from));
    }
  }
  gradient = anchored.get();
  // A pass has written to it, which a raw copy does not tell.
  gradient.unsafeGetTensorImpl()->bump_version();
}

void GradientBuckets::Packing::add(const at::Tensor& slot,
                                   const at::Tensor& gradient) {
  Copies& copies =
      gradient.strides() == slot.strides() ? of_equal_strides : others;
  copies.slots.push_back(slot);
  copies.gradients.push_back(gradient);
}

// _foreach_copy_ copies one by one where the strides of one pair differ.
void GradientBuckets::pack(std::size_t bucket) {
  Packing& packing = packings_[bucket];
  const at::Device device = flats_[bucket].device();
  const bool others = packing.streams.hold_up_current(device);
  for (Copies* const copies : {&packing.of_equal_strides, &packing.others}) {
    if (others) keep_for_current_stream(copies->gradients);
    if (!copies->slots.empty())
      at::_foreach_copy_(copies->slots, copies->gradients);
    copies->slots.clear();
    copies->gradients.clear();
  }
}

// Peers are told where it lies for this operation alone.
void GradientBuckets::hold(std::size_t parameter, const at::Tensor& gradient) {
  const auto& [bucket, index] = pieces_[parameter];
  buffers_[bucket][index].data = gradient.mutable_data_ptr();
  held_.push_back(gradient);
}

void GradientBuckets::let_go() { held_.clear(); }

Buffer GradientBuckets::completeness() const { return view(incomplete_); }

void GradientBuckets::declare_complete() { incomplete_.zero_(); }

void GradientBuckets::declare_incomplete() { incomplete_.fill_(1); }

bool GradientBuckets::some_rank_is_incomplete() const {
  return incomplete_.item<double>() != 0;
}

}  // namespace lockstep
