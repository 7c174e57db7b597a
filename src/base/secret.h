// Secrets: random bytes from the kernel, and a comparison whose time does not
// reveal how much of a guess is right.
//
// Threads: any thread.
// Errors:  SystemError when the kernel gives no random bytes. There is no
//          weaker fallback.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

namespace lockstep {

// A process proves with it that it belongs to the job.
using Secret = std::array<std::byte, 32>;

void fill_randomly(std::span<std::byte> bytes);

// A value whose bits are all random.
template <class T>
T random_value() {
  static_assert(std::has_unique_object_representations_v<T>);
  T value{};
  fill_randomly(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

// `bytes` random bytes in hexadecimal, two characters each.
std::string random_hex(std::size_t bytes);

// Takes the same time wherever the first difference is. `a` and `b` must have
// the same length.
bool equal_in_constant_time(std::span<const std::byte> a,
                            std::span<const std::byte> b);

}  // namespace lockstep
