#include "src/comm/reference/reference_arithmetic.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <type_traits>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

template <class T>
T combine_two(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      if constexpr (std::is_integral_v<T>) {
        using Wrapping = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<Wrapping>(a) +
                              static_cast<Wrapping>(b));
      }
      return a + b;
    case ReduceOp::kProduct:
      if constexpr (std::is_integral_v<T>)  // 64 bits hold every smaller wrap
        return static_cast<T>(static_cast<std::uint64_t>(a) *
                              static_cast<std::uint64_t>(b));
      return a * b;
    case ReduceOp::kMin:
      if constexpr (std::is_floating_point_v<T>)
        if (std::isnan(a) || std::isnan(b)) return a + b;
      return b < a ? b : a;
    case ReduceOp::kMax:
      if constexpr (std::is_floating_point_v<T>)
        if (std::isnan(a) || std::isnan(b)) return a + b;
      return a < b ? b : a;
    case ReduceOp::kBand:
      if constexpr (std::is_integral_v<T>) return a & b;
      break;
    case ReduceOp::kBor:
      if constexpr (std::is_integral_v<T>) return a | b;
      break;
    case ReduceOp::kBxor:
      if constexpr (std::is_integral_v<T>) return a ^ b;
      break;
  }
  throw InternalError("a bitwise reduction of floating-point numbers");
}

template <class T>
T combine_tree(ReduceOp op, std::span<const T> values) {
  if (values.size() == 1) return values[0];
  const std::size_t half = std::bit_floor(values.size() - 1);
  return combine_two(op, combine_tree(op, values.first(half)),
                     combine_tree(op, values.subspan(half)));
}

// `Stored` is an element's type in memory, `Number` the type computed in.
template <class Stored, class Number>
void reduce_as(ReduceOp op,
               std::span<const std::vector<std::byte>> contributions,
               std::span<std::byte> result,
               const std::function<Number(Stored)>& load,
               const std::function<Stored(Number)>& store) {
  std::vector<Number> values(contributions.size());
  for (std::size_t at = 0; at < result.size(); at += sizeof(Stored)) {
    for (std::size_t r = 0; r < values.size(); ++r) {
      Stored stored;
      std::memcpy(&stored, contributions[r].data() + at, sizeof stored);
      values[r] = load(stored);
    }
    Number combined = combine_tree<Number>(op, values);
    if constexpr (std::is_floating_point_v<Number>)
      if (op == ReduceOp::kAverage)
        combined /= static_cast<Number>(values.size());
    const Stored stored = store(combined);
    std::memcpy(result.data() + at, &stored, sizeof stored);
  }
}

template <class T>
void reduce_plain(ReduceOp op,
                  std::span<const std::vector<std::byte>> contributions,
                  std::span<std::byte> result) {
  const auto same = [](T value) { return value; };
  reduce_as<T, T>(op, contributions, result, same, same);
}

}  // namespace

void reference_reduce(ReduceOp op, DataType type,
                      std::span<const std::vector<std::byte>> contributions,
                      std::span<std::byte> result) {
  switch (type) {
    case DataType::kFloat32:
      return reduce_plain<float>(op, contributions, result);
    case DataType::kFloat64:
      return reduce_plain<double>(op, contributions, result);
    case DataType::kFloat16:
      return reduce_as<Float16, float>(
          op, contributions, result, [](Float16 v) { return to_float(v); },
          [](float v) { return to_float16(v); });
    case DataType::kBFloat16:
      return reduce_as<BFloat16, float>(
          op, contributions, result, [](BFloat16 v) { return to_float(v); },
          [](float v) { return to_bfloat16(v); });
    case DataType::kInt8:
      return reduce_plain<std::int8_t>(op, contributions, result);
    case DataType::kUInt8:
      return reduce_plain<std::uint8_t>(op, contributions, result);
    case DataType::kInt32:
      return reduce_plain<std::int32_t>(op, contributions, result);
    case DataType::kInt64:
      return reduce_plain<std::int64_t>(op, contributions, result);
    case DataType::kBool: {
      const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax;
      return reduce_as<std::uint8_t, std::uint8_t>(
          any ? ReduceOp::kBor : ReduceOp::kBand, contributions, result,
          [](std::uint8_t v) -> std::uint8_t { return v != 0; },
          [](std::uint8_t v) { return v; });
    }
  }
}

}  // namespace lockstep
