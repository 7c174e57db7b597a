// The element types that training uses, and the device that elements live on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep {

// The numbers are part of the wire formats: append, never renumber.
enum class DataType : std::uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt8 = 4,
  kUInt8 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 8,
};

inline constexpr std::array kAllDataTypes{
    DataType::kFloat32,  DataType::kFloat64, DataType::kFloat16,
    DataType::kBFloat16, DataType::kInt8,    DataType::kUInt8,
    DataType::kInt32,    DataType::kInt64,   DataType::kBool};

// Bytes of one element.
std::size_t size_of(DataType type);

// The field's word for the type: "float32", "bfloat16", "bool".
std::string_view name_of(DataType type);

// Whether the type is one of the four floating-point types.
bool is_floating_point(DataType type);

// A 16-bit IEEE 754 binary16 number, as stored. Arithmetic is done in float32.
struct Float16 {
  std::uint16_t bits;
};

// The upper half of a float32, as stored. Arithmetic is done in float32.
struct BFloat16 {
  std::uint16_t bits;
};

// Conversions round to nearest, ties to even; NaN stays NaN, overflow becomes
// infinity.
float to_float(Float16 value);
float to_float(BFloat16 value);
Float16 to_float16(float value);
BFloat16 to_bfloat16(float value);

// A value or a message of any content.
using Bytes = std::vector<std::byte>;

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// Where memory lives. `index` counts devices of a kind from 0.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

}  // namespace lockstep
