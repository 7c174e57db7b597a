#include "lockstep/comm/testing/conformance_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/reference/reference_arithmetic.h"

namespace lockstep {
namespace {

std::uint64_t mix(std::uint64_t x) {  // splitmix64's finaliser (Steele 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Element `i` of rank `rank`, stored at `at`. Floats are small and of mixed
// magnitude, so that another order of summation would show.
void store_element(DataType type, std::uint64_t random, std::byte* at) {
  const float value =
      std::ldexp(static_cast<float>(static_cast<int>(random % 2001) - 1000),
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

std::vector<std::byte> contribution(const ConformanceCase& c,
                                    std::uint64_t seed, int rank) {
  const std::size_t size = size_of(c.type);
  const auto elements = static_cast<std::size_t>(c.elements);
  std::vector<std::byte> bytes(elements * size);
  for (std::size_t i = 0; i < elements; ++i)
    store_element(
        c.type,
        mix(seed + i * 64 + static_cast<std::uint64_t>(rank) + 0x9e3779b9),
        bytes.data() + i * size);
  return bytes;
}

std::vector<std::int64_t> buffer_counts(const ConformanceCase& c) {
  if (c.division == Division::kOneBuffer) return {c.elements};
  if (c.division == Division::kSeveralBuffers) {
    const std::int64_t third = c.elements / 3;
    return {third, third / 2, c.elements - third - third / 2};
  }
  std::vector<std::int64_t> counts;
  std::int64_t left = c.elements;
  for (int i = 0; i < 40; ++i) {
    const std::int64_t count =
        i % 4 == 0 ? 0 : std::min<std::int64_t>(left, 1 + c.elements / 29);
    counts.push_back(count);
    left -= count;
  }
  counts.push_back(left);
  return counts;
}

// Memory for one list of buffers, with a guard around each in ordinary memory
// that shows writes beyond the ends.
class BufferList {
 public:
  BufferList(ProcessGroup& group, const ConformanceCase& c, std::int64_t times)
      : type_(c.type) {
    const bool from_group =
        c.memory == Memory::kGroup ||
        (c.memory == Memory::kEvenRanksGroup && group.rank() % 2 == 0);
    for (const std::int64_t count : buffer_counts(c))
      add(group, count * times, from_group);
  }

  std::span<const Buffer> buffers() const { return buffers_; }

  void fill(const std::vector<std::byte>& bytes) {
    std::size_t at = 0;
    for (const Buffer& buffer : buffers_) {
      if (buffer.count > 0)
        std::memcpy(buffer.data, bytes.data() + at, buffer.bytes());
      at += buffer.bytes();
    }
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (const Buffer& buffer : buffers_) {
      const auto* data = static_cast<const std::byte*>(buffer.data);
      all.insert(all.end(), data, data + buffer.bytes());
    }
    return all;
  }

  bool guards_intact() const {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const auto* data = static_cast<const std::byte*>(buffers_[i].data);
      const std::byte* end = data + buffers_[i].bytes();
      const auto intact = [](std::byte b) { return b == kGuard; };
      if (!std::all_of<const std::byte*>(blocks_[i].get(), data, intact) ||
          !std::all_of<const std::byte*>(end, ends_[i], intact))
        return false;
    }
    return true;
  }

 private:
  static constexpr std::byte kGuard{0x5a};

  // An odd multiple of the element's size keeps natural alignment and nothing
  // more.
  void add(ProcessGroup& group, std::int64_t count, bool from_group) {
    const std::size_t margin = size_of(type_) * 17;
    const std::size_t bytes =
        static_cast<std::size_t>(count) * size_of(type_) + 2 * margin;
    std::shared_ptr<std::byte> block =
        from_group
            ? group.allocate(bytes)
            : std::shared_ptr<std::byte>(new std::byte[bytes],
                                         std::default_delete<std::byte[]>());
    std::fill_n(block.get(), bytes, kGuard);
    buffers_.push_back({block.get() + margin, count, type_});
    ends_.push_back(block.get() + bytes);
    blocks_.push_back(std::move(block));
  }

  DataType type_;
  std::vector<std::shared_ptr<std::byte>> blocks_;
  std::vector<std::byte*> ends_;
  std::vector<Buffer> buffers_;
};

// What `rank` must hold afterwards, buffer after buffer.
std::vector<std::byte> expected_bytes(
    const ConformanceCase& c, int root,
    const std::vector<std::vector<std::byte>>& contributions) {
  if (c.kind == OperationKind::kBroadcast)
    return contributions[static_cast<std::size_t>(root)];
  std::vector<std::byte> result(contributions.front().size());
  if (c.kind == OperationKind::kAllReduce) {
    reference_reduce(c.reduction, c.type, contributions, result);
    return result;
  }
  result.clear();  // all_gather: each buffer has every rank's part of it
  std::size_t at = 0;
  for (const std::int64_t count : buffer_counts(c)) {
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(c.type);
    for (const auto& bytes_of_rank : contributions)
      result.insert(
          result.end(), bytes_of_rank.begin() + static_cast<std::ptrdiff_t>(at),
          bytes_of_rank.begin() + static_cast<std::ptrdiff_t>(at + bytes));
    at += bytes;
  }
  return result;
}

std::string compare(const ConformanceCase& c,
                    const std::vector<std::byte>& found,
                    const std::vector<std::byte>& expected) {
  const auto [a, b] = std::ranges::mismatch(found, expected);
  if (a == found.end() && b == expected.end()) return "";
  return fmt::format(
      "{}: byte {} (element {}) is {:#04x}, expected {:#04x}", describe(c),
      a - found.begin(),
      static_cast<std::size_t>(a - found.begin()) / size_of(c.type),
      a == found.end() ? -1 : std::to_integer<int>(*a),
      b == expected.end() ? -1 : std::to_integer<int>(*b));
}

}  // namespace

std::string run_conformance_case(ProcessGroup& group, const ConformanceCase& c,
                                 std::uint64_t seed) {
  if (c.kind == OperationKind::kBarrier) {
    group.barrier().wait();
    return "";
  }
  std::vector<std::vector<std::byte>> contributions;
  for (int rank = 0; rank < c.ranks; ++rank)
    contributions.push_back(contribution(c, seed, rank));
  const auto& mine = contributions[static_cast<std::size_t>(group.rank())];
  const int root = static_cast<int>(seed % static_cast<std::uint64_t>(c.ranks));
  const bool gathers = c.kind == OperationKind::kAllGather;

  BufferList list(group, c, 1);
  BufferList gathered(group, c, gathers ? c.ranks : 0);
  list.fill(mine);
  if (c.kind == OperationKind::kBroadcast)
    group.broadcast(list.buffers(), root).wait();
  else if (gathers)
    group.all_gather(list.buffers(), gathered.buffers()).wait();
  else
    group.all_reduce(list.buffers(), c.reduction).wait();

  if (gathers && list.bytes() != mine)
    return describe(c) + ": the input was changed";
  if (!list.guards_intact() || !gathered.guards_intact())
    return describe(c) + ": memory beyond a buffer was written";
  return compare(c, (gathers ? gathered : list).bytes(),
                 expected_bytes(c, root, contributions));
}

}  // namespace lockstep
