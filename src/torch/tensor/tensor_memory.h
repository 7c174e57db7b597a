// Questions about a foreign tensor that must be answered before code reads or
// writes its memory directly.
//
// A tensor's memory does not always hold its elements: at::real(z.conj()), and
// the gradients that flow back through it, are negated only when they are read.
// Nor does the memory always belong to one tensor: autograd gives one tensor,
// or views of it, to several parameters.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace lockstep {

// Whether the elements lie in memory as they are: the tensor is strided, with
// no pending negation or conjugation.
bool holds_its_elements(const at::Tensor& tensor);

// `tensor` itself, or a copy where its memory does not hold its elements.
// Sparse tensors stay what they are.
at::Tensor resolved(const at::Tensor& tensor);

// The same for the .grad of `parameter`, which becomes the copy.
void resolve_gradient(const at::Tensor& parameter);

// The elements that expand() has not repeated: a tensor that shares the memory,
// and repeats none along a dimension.
at::Tensor without_repeats(const at::Tensor& tensor);

// A tensor of the shape of `like` without what expand() has repeated in `like`:
// its first part along each such dimension.
at::Tensor without_repeats(at::Tensor tensor, const at::Tensor& like);

// Copies the elements of `from` to `to`, which has its shape and may be
// expanded: then it gets the first of what it repeats. at::Tensor::copy_()
// refuses that.
void copy_elements(const at::Tensor& from, const at::Tensor& to);

// Whether no other tensor uses the memory.
bool is_exclusive(const at::Tensor& tensor);

// Whether `alias` is `tensor` by another name.
bool is_alias_of(const at::Tensor& alias, const at::Tensor& tensor);

// Makes `alias` an alias: from here on it shares the memory of `tensor` and its
// version, by which autograd notices changes since a forward pass.
void make_alias(const at::Tensor& alias, const at::Tensor& tensor);

// The first byte of a strided tensor's memory, and the one behind its last.
std::pair<const std::byte*, const std::byte*> extent_of(
    const at::Tensor& tensor);

// Remembers a tensor, where it lay and its version, to tell later whether it is
// the same tensor, in the same memory, unchanged. A tensor may move:
// set_data(), the C++ form of `grad.data = …`, gives it other memory without
// another version. Does not keep the tensor's memory alive; its address is not
// compared alone, since freed memory is soon given out again.
class SeenTensor {
 public:
  SeenTensor() = default;  // an undefined tensor
  explicit SeenTensor(const at::Tensor& tensor);

  bool is_defined() const { return defined_; }
  // Whether `tensor` is the tensor seen, wherever it lies now.
  bool is_same(const at::Tensor& tensor) const;
  // Whether `tensor`, the one seen or another, lies where that one lay.
  bool lies_at(const at::Tensor& tensor) const;
  // Autograd's count of writes to it then; 0 for a tensor without one.
  std::uint32_t version() const { return version_; }

 private:
  using Storage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  using Tensor =
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  bool defined_ = false;
  Tensor tensor_{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  Storage storage_{c10::intrusive_ptr<c10::StorageImpl>()};
  std::int64_t offset_ = 0;
  std::uint32_t version_ = 0;
};

// Autograd's count of writes to `tensor`; 0 for a tensor without one.
std::uint32_t version_of(const at::Tensor& tensor);

// A tensor that is handed out, and that comes back to its place if its holder
// has moved or reshaped it.
class AnchoredTensor {
 public:
  AnchoredTensor() = default;
  explicit AnchoredTensor(at::Tensor place)
      : place_(std::move(place)), given_(place_.variable_data()) {}

  // The place: never handed out, so never moved.
  const at::Tensor& place() const { return place_; }
  // The tensor to hand out, which lies in the place: the one of the last call
  // unless its holder has moved it.
  const at::Tensor& get();
  // The tensor of the last call, wherever it lies now.
  const at::Tensor& given() const { return given_; }
  // Whether `tensor` is the one handed out, and still lies in its place.
  bool is_home(const at::Tensor& tensor) const;

 private:
  at::Tensor place_, given_;
};

// The type that autograd gives the gradient of `parameter`: the parameter's, or
// the one set by set_grad_dtype().
at::ScalarType gradient_type(const at::Tensor& parameter);

}  // namespace lockstep
