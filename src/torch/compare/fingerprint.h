// Hashes of tensors' bits, with which ranks compare their data cheaply.
//
// A fingerprint has 128 bits: two tensors that differ have the same one with a
// probability of 10^-38. It depends on the order of the elements, on type and
// shape, but not on strides. 0.0 and -0.0 differ, and so do two NaNs with
// different bits.
//
// Errors:  none of their own.
// Source:  XXH3 of Yann Collet's xxHash.
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

struct Fingerprint {
  std::uint64_t low = 0, high = 0;
  friend auto operator<=>(const Fingerprint&, const Fingerprint&) = default;
};

Fingerprint fingerprint_of(std::span<const std::byte> bytes);

// Copies the elements only where they are not contiguous. An undefined tensor
// has a fingerprint too.
Fingerprint fingerprint_of(const at::Tensor& tensor);

// The fingerprint of a list.
Fingerprint fingerprint_of(std::span<const Fingerprint> parts);

}  // namespace lockstep
