// Hashes of tensors' bits, by which ranks tell cheaply whether what they hold
// is the same.
//
// 128 bits: two that differ have the same fingerprint once in 10^38 times. They
// depend on the order of what is hashed; on type and shape too, but not on
// strides. 0.0 and -0.0 differ, and so do two NaNs of other bits.
//
// Threads: functions of their arguments.
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

// Elements are copied only where they are not contiguous. An undefined tensor
// has a fingerprint too.
Fingerprint fingerprint_of(const at::Tensor& tensor);

// Of a list.
Fingerprint fingerprint_of(std::span<const Fingerprint> parts);

}  // namespace lockstep
