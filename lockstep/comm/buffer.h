// A run of elements somewhere in memory: what every collective works on.
//
// A Buffer borrows; whoever makes it keeps the memory alive until the Work of
// the operation is done.
//
// Threads: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "lockstep/base/data_type.h"

namespace lockstep {

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

}  // namespace lockstep
