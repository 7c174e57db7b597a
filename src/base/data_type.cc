#include <bit>
#include <cmath>

#include "lockstep/base/buffer.h"
#include "lockstep/base/error.h"

namespace lockstep {

std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUInt8:
    case DataType::kBool:
      return 1;
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return 2;
    case DataType::kFloat32:
    case DataType::kInt32:
      return 4;
    case DataType::kFloat64:
    case DataType::kInt64:
      return 8;
  }
  throw InvalidArgument("unknown data type");
}

std::string_view name_of(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat64:
      return "float64";
    case DataType::kFloat16:
      return "float16";
    case DataType::kBFloat16:
      return "bfloat16";
    case DataType::kInt8:
      return "int8";
    case DataType::kUInt8:
      return "uint8";
    case DataType::kInt32:
      return "int32";
    case DataType::kInt64:
      return "int64";
    case DataType::kBool:
      return "bool";
  }
  return "unknown";
}

bool is_floating_point(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat64 ||
         type == DataType::kFloat16 || type == DataType::kBFloat16;
}

float to_float(BFloat16 value) {
  return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
}

BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value))
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40)};
  const std::uint32_t to_even = 0x7fff + ((bits >> 16) & 1);
  return {static_cast<std::uint16_t>((bits + to_even) >> 16)};
}

float to_float(Float16 value) {
  const std::uint32_t sign = std::uint32_t{value.bits & 0x8000u} << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1f;
  const std::uint32_t mantissa = value.bits & 0x3ff;
  if (exponent == 0)  // zero and subnormal: mantissa units of 2^-24
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(std::ldexp(
                                           static_cast<float>(mantissa), -24)));
  if (exponent == 31)
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) |
                              (mantissa << 13));
}

Float16 to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  const auto with_sign = [sign](std::uint32_t half) {
    return Float16{static_cast<std::uint16_t>(sign | half)};
  };
  if (magnitude > 0x7f800000) return with_sign(0x7e00);   // NaN
  if (magnitude >= 0x477ff000) return with_sign(0x7c00);  // rounds to infinity
  if (magnitude < 0x38800000) {                           // subnormal or zero
    // Adding 0.5 lines the mantissa up with units of 2^-24; the addition
    // itself rounds to nearest even.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return with_sign(std::bit_cast<std::uint32_t>(aligned) - 0x3f000000);
  }
  const std::uint32_t to_even = 0xfff + ((magnitude >> 13) & 1);
  return with_sign((magnitude - 0x38000000 + to_even) >> 13);
}

}  // namespace lockstep
