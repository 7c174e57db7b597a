// What nobody may guess: random bytes of the kernel's, and a comparison that
// does not tell how much of a guess was right.
//
// Threads: any.
// Errors:  SystemError when the kernel gives no random bytes. Nothing weaker
//          takes their place.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

namespace lockstep {

// What a process shows to prove that it is of the job.
using Secret = std::array<std::byte, 32>;

void fill_randomly(std::span<std::byte> bytes);

// A value of which every bit is random.
template <class T>
T random_value() {
  static_assert(std::has_unique_object_representations_v<T>);
  T value{};
  fill_randomly(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

// `bytes` random ones as text, two characters each.
std::string random_hex(std::size_t bytes);

// Takes equally long wherever the first difference is. Both are of one length.
bool equal_in_constant_time(std::span<const std::byte> a,
                            std::span<const std::byte> b);

}  // namespace lockstep
