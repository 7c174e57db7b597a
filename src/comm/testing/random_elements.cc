#include "src/comm/testing/random_elements.h"

#include <cmath>
#include <cstring>

namespace lockstep {

std::uint64_t mix_bits(
    std::uint64_t x) {  // splitmix64's finaliser (Steele 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

void store_element(DataType type, std::uint64_t random, std::byte* at,
                   Elements elements) {
  const float value =
      elements == Elements::kExact
          ? static_cast<float>(static_cast<int>(random % 7) - 3)
          : std::ldexp(
                static_cast<float>(static_cast<int>(random % 2001) - 1000),
                static_cast<int>(random >> 40) % 12 - 12);
  const auto put = [at](auto element) {
    std::memcpy(at, &element, sizeof element);
  };
  switch (type) {
    case DataType::kFloat32:
      return put(value);
    case DataType::kFloat64:
      return put(static_cast<double>(value));
    case DataType::kFloat16:
      return put(to_float16(value));
    case DataType::kBFloat16:
      return put(to_bfloat16(value));
    case DataType::kBool:
      return put(static_cast<std::uint8_t>(random % 3 != 0));
    case DataType::kInt8:
    case DataType::kUInt8:
    case DataType::kInt32:
    case DataType::kInt64:
      std::memcpy(at, &random, size_of(type));
  }
}

}  // namespace lockstep
