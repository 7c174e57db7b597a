// What has to be known of a tensor that another part of a program has made
// before its memory is read or written instead of the tensor.
//
// A tensor's memory is not always its elements: at::real(z.conj()), and the
// gradients that flow back through it, are negated only when they are read. Nor
// is the memory always the tensor's alone: autograd hands one tensor to several
// parameters, and views of it.
//
// Threads: pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <utility>

namespace lockstep {

// Whether the elements lie in memory as they are: the tensor is strided, and no
// negation or conjugation is left to be applied when they are read.
bool holds_its_elements(const at::Tensor& tensor);

// `tensor` itself, or a copy where its memory does not hold its elements.
// Sparse tensors stay what they are.
at::Tensor resolved(const at::Tensor& tensor);

// The same for the .grad of `parameter`, which becomes the copy.
void resolve_gradient(const at::Tensor& parameter);

// Whether no other tensor has the memory.
bool is_exclusive(const at::Tensor& tensor);

// Whether `alias` is `tensor` by another name.
bool is_alias_of(const at::Tensor& alias, const at::Tensor& tensor);

// Makes it so: `alias` has the memory of `tensor` from here on, and its count
// of writes, by which autograd notices that one has changed since a forward
// pass.
void make_alias(const at::Tensor& alias, const at::Tensor& tensor);

// From the first byte of a strided tensor's memory to behind its last one.
std::pair<const std::byte*, const std::byte*> extent_of(
    const at::Tensor& tensor);

// The type that autograd gives the gradient of `parameter`: the parameter's, or
// what set_grad_dtype() has said.
at::ScalarType gradient_type(const at::Tensor& parameter);

}  // namespace lockstep
