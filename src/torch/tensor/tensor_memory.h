// Questions about a foreign tensor that must be answered before code reads or
// writes its memory directly.
//
// A tensor's memory does not always hold its elements: at::real(z.conj()), and
// the gradients that flow back through it, are negated only when they are read.
// Nor does the memory always belong to one tensor: autograd gives one tensor,
// or views of it, to several parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
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
at::Tensor without_repeats(at::Tensor tensor);

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

// The type that autograd gives the gradient of `parameter`: the parameter's, or
// the one set by set_grad_dtype().
at::ScalarType gradient_type(const at::Tensor& parameter);

}  // namespace lockstep
