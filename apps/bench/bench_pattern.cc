#include "apps/bench/bench_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Values repeat after a prime number of elements, so no block or chunk of a
// round size begins with the same values as its neighbour.
constexpr std::uint64_t kPeriod = 61;
// The elements that are computed one by one; further ones are copies.
constexpr std::size_t kTileElements = 16 * kPeriod;

std::int64_t value_at(const BlockOrigin& origin, std::uint64_t place,
                      const ElementKind& kind) {
  const auto phase = static_cast<std::uint64_t>(7 * origin.rank) +
                     static_cast<std::uint64_t>(13 * origin.block);
  const std::uint64_t k = (place + phase) % kPeriod;
  // 1 to 5, in an order without a short period.
  const auto value = static_cast<std::int64_t>((k * k + k / 3) % 5 + 1);
  // Few factors other than 1, so products over many ranks stay small.
  if (kind.op == ReduceOp::kProduct && kind.type != DataType::kBool)
    return value == 5 ? 2 : 1;
  return value;
}

bool is_true(std::int64_t value) { return value > 2; }

std::int64_t combine(std::int64_t a, std::int64_t b, const ElementKind& kind) {
  const bool logical = kind.type == DataType::kBool;
  // Unsigned: integers wrap like the engines'.
  const auto x = static_cast<std::uint64_t>(a);
  const auto y = static_cast<std::uint64_t>(b);
  switch (kind.op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return logical ? std::max(a, b) : static_cast<std::int64_t>(x + y);
    case ReduceOp::kProduct:
      return logical ? std::min(a, b) : static_cast<std::int64_t>(x * y);
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kBand:
      return static_cast<std::int64_t>(x & y);
    case ReduceOp::kBor:
      return static_cast<std::int64_t>(x | y);
    case ReduceOp::kBxor:
      return static_cast<std::int64_t>(x ^ y);
  }
  return 0;
}

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

// Stores `value` / `divisor`; integers are never divided.
void store(std::byte* to, DataType type, std::int64_t value, double divisor) {
  const double real = static_cast<double>(value) / divisor;
  switch (type) {
    case DataType::kFloat32:
      return put(to, static_cast<float>(real));
    case DataType::kFloat64:
      return put(to, real);
    case DataType::kFloat16:
      return put(to, to_float16(static_cast<float>(real)));
    case DataType::kBFloat16:
      return put(to, to_bfloat16(static_cast<float>(real)));
    case DataType::kInt8:
      return put(to, static_cast<std::int8_t>(value));
    case DataType::kUInt8:
      return put(to, static_cast<std::uint8_t>(value));
    case DataType::kInt32:
      return put(to, static_cast<std::int32_t>(value));
    case DataType::kInt64:
      return put(to, value);
    case DataType::kBool:
      return put(to, is_true(value));
  }
}

template <class T>
T get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

double load(const std::byte* from, DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return get<float>(from);
    case DataType::kFloat64:
      return get<double>(from);
    case DataType::kFloat16:
      return to_float(get<Float16>(from));
    case DataType::kBFloat16:
      return to_float(get<BFloat16>(from));
    case DataType::kInt8:
      return get<std::int8_t>(from);
    case DataType::kUInt8:
    case DataType::kBool:
      return get<std::uint8_t>(from);
    case DataType::kInt32:
      return get<std::int32_t>(from);
    case DataType::kInt64:
      return static_cast<double>(get<std::int64_t>(from));
  }
  return 0;
}

// The relative tolerance of a result: a few roundings of the type.
double tolerance(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return 1e-5;
    case DataType::kFloat64:
      return 1e-12;
    case DataType::kFloat16:
      return 4e-3;
    case DataType::kBFloat16:
      return 3e-2;
    case DataType::kInt8:
    case DataType::kUInt8:
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kBool:
      return 0;
  }
  return 0;
}

// The first elements of a block made of `origins`: all of them, or one period.
std::vector<std::byte> make_tile(std::size_t count, const ElementKind& kind,
                                 std::span<const BlockOrigin> origins,
                                 std::uint64_t round) {
  const std::size_t elements = std::min(count, kTileElements);
  const std::size_t width = size_of(kind.type);
  const bool averages = kind.op == ReduceOp::kAverage && origins.size() > 1;
  const double divisor = averages ? static_cast<double>(origins.size()) : 1;
  std::vector<std::byte> tile(elements * width);
  for (std::size_t i = 0; i < elements; ++i) {
    const std::uint64_t place = i + 29 * round;
    std::int64_t value = value_at(origins.front(), place, kind);
    for (const BlockOrigin& origin : origins.subspan(1))
      value = combine(value, value_at(origin, place, kind), kind);
    store(tile.data() + i * width, kind.type, value, divisor);
  }
  return tile;
}

void check_tile(std::span<const std::byte> found,
                std::span<const std::byte> tile, DataType type,
                std::size_t first) {
  if (std::memcmp(found.data(), tile.data(), found.size()) == 0) return;
  const std::size_t width = size_of(type);
  for (std::size_t at = 0; at < found.size(); at += width) {
    const double value = load(found.data() + at, type);
    const double exact = load(tile.data() + at, type);
    // Written so that NaN counts as wrong and equal infinities as right.
    if (value == exact) continue;
    if (std::abs(value - exact) <= tolerance(type) * std::abs(exact)) continue;
    throw InternalError(fmt::format("element {} of the result is {}, not {}",
                                    first + at / width, value, exact));
  }
}

std::vector<BlockOrigin> of_every_rank(int size, int block) {
  std::vector<BlockOrigin> origins;
  for (int r = 0; r < size; ++r) origins.push_back({.rank = r, .block = block});
  return origins;
}

}  // namespace

std::vector<std::vector<BlockOrigin>> expected_blocks(
    BenchCollective collective, int rank, int size) {
  std::vector<std::vector<BlockOrigin>> blocks;
  switch (collective) {
    case BenchCollective::kBarrier:
      return {};
    case BenchCollective::kAllReduce:
      return {of_every_rank(size, 0)};
    case BenchCollective::kBroadcast:
      return {{{.rank = 0, .block = 0}}};
    case BenchCollective::kReduce:
      if (rank == 0) return {of_every_rank(size, 0)};
      return {{{.rank = rank, .block = 0}}};
    case BenchCollective::kGather:
      if (rank != 0) return {};
      [[fallthrough]];
    case BenchCollective::kAllGather:
      for (int r = 0; r < size; ++r) blocks.push_back({{r, 0}});
      return blocks;
    case BenchCollective::kScatter:
      return {{{.rank = 0, .block = rank}}};
    case BenchCollective::kReduceScatter:
      return {of_every_rank(size, rank)};
    case BenchCollective::kAllToAll:
      for (int r = 0; r < size; ++r) blocks.push_back({{r, rank}});
      return blocks;
    case BenchCollective::kSendRecv:
      return {{{.rank = (rank + size - 1) % size, .block = 0}}};
  }
  return {};
}

void write_block(std::byte* block, std::size_t count, const ElementKind& kind,
                 const BlockOrigin& origin, std::uint64_t round) {
  const auto tile = make_tile(count, kind, {&origin, 1}, round);
  const std::size_t bytes = count * size_of(kind.type);
  for (std::size_t at = 0; at < bytes; at += tile.size())
    std::memcpy(block + at, tile.data(), std::min(tile.size(), bytes - at));
}

void check_block(const std::byte* block, std::size_t count,
                 const ElementKind& kind, std::span<const BlockOrigin> origins,
                 std::uint64_t round) {
  const auto tile = make_tile(count, kind, origins, round);
  const std::size_t width = size_of(kind.type);
  const std::size_t bytes = count * width;
  for (std::size_t at = 0; at < bytes; at += tile.size())
    check_tile({block + at, std::min(tile.size(), bytes - at)}, tile, kind.type,
               at / width);
}

}  // namespace lockstep
