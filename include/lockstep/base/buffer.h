// What operations work on: element types, devices, buffers (contiguous ranges
// of elements in memory), and the reductions that combine elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace lockstep {

// The element types that training uses, and the device that elements live on.

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

// What collectives work on: buffers, which are contiguous ranges of elements in
// memory, and the reductions that combine elements.
//
// A Buffer does not own its memory; the caller keeps that alive until the Work
// of the operation is done. A list of buffers is one operation (other libraries
// say coalesced).

struct Buffer {
  void* data = nullptr;
  std::int64_t count = 0;  // elements, not bytes
  DataType type = DataType::kFloat32;
  Device device{};

  std::size_t bytes() const {
    return static_cast<std::size_t>(count) * size_of(type);
  }
};

// The DataType of a C++ element type.
template <class T>
constexpr DataType data_type_of() {
  if constexpr (std::is_same_v<T, float>) return DataType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return DataType::kFloat64;
  if constexpr (std::is_same_v<T, Float16>) return DataType::kFloat16;
  if constexpr (std::is_same_v<T, BFloat16>) return DataType::kBFloat16;
  if constexpr (std::is_same_v<T, std::int8_t>) return DataType::kInt8;
  if constexpr (std::is_same_v<T, std::uint8_t>) return DataType::kUInt8;
  if constexpr (std::is_same_v<T, std::int32_t>) return DataType::kInt32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DataType::kInt64;
  if constexpr (std::is_same_v<T, bool>) return DataType::kBool;
}

// The elements of a vector, array or span as a Buffer.
template <class T>
Buffer view(std::span<T> elements) {
  using Element = std::remove_const_t<T>;
  return {const_cast<Element*>(elements.data()),
          static_cast<std::int64_t>(elements.size()), data_type_of<Element>()};
}
template <class T>
Buffer view(std::vector<T>& elements) {
  return view(std::span<T>(elements));
}
// For the inputs of operations that only read.
template <class T>
Buffer view(const std::vector<T>& elements) {
  return view(std::span<const T>(elements));
}

// Bytes as a Buffer of uint8.
inline Buffer view_bytes(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()),
          static_cast<std::int64_t>(bytes.size()), DataType::kUInt8};
}

// An argument that is one buffer or a list of them. The buffers must outlive
// the call, which temporaries do.
class Buffers : public std::span<const Buffer> {
 public:
  Buffers() = default;
  Buffers(const Buffer& one) : span(&one, 1) {}             // NOLINT: converts
  Buffers(std::span<const Buffer> list) : span(list) {}     // NOLINT
  Buffers(std::span<Buffer> list) : span(list) {}           // NOLINT
  Buffers(const std::vector<Buffer>& list) : span(list) {}  // NOLINT
  Buffers(std::initializer_list<Buffer> list)
      : span(list.begin(), list.size()) {}
};

enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kProduct = 1,
  kMin = 2,
  kMax = 3,
  kAverage = 4,  // the sum divided by the number of ranks; floating point only
  kBand = 5,     // bitwise; integers only
  kBor = 6,
  kBxor = 7,
};

inline constexpr std::array kAllReductions{
    ReduceOp::kSum,     ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax,
    ReduceOp::kAverage, ReduceOp::kBand,    ReduceOp::kBor, ReduceOp::kBxor};

// The name in messages: "sum".
std::string_view name_of(ReduceOp op);

// Whether `op` is defined on `type`. On bool, sum and max are "or", product and
// min are "and"; average and the bitwise three are not defined there.
bool is_defined(ReduceOp op, DataType type);

// Adds `buffer` to the list of its type, or to a new list: the buffers of one
// operation have one type.
void add_by_type(std::vector<std::vector<Buffer>>& lists, const Buffer& buffer);

// Splits `buffer` into one part per rank, in rank order: counts[r] elements for
// rank r. The uneven operations (all_gather_v, …) take such lists.
std::vector<Buffer> split(const Buffer& buffer,
                          std::span<const std::int64_t> counts);

}  // namespace lockstep
