#include "lockstep/base/buffer.h"

#include <algorithm>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

void add_by_type(std::vector<std::vector<Buffer>>& lists,
                 const Buffer& buffer) {
  const auto list = std::ranges::find_if(lists, [&](const auto& of_type) {
    return of_type.front().type == buffer.type;
  });
  if (list != lists.end())
    list->push_back(buffer);
  else
    lists.push_back({buffer});
}

std::vector<Buffer> split(const Buffer& buffer,
                          std::span<const std::int64_t> counts) {
  std::vector<Buffer> parts;
  auto* at = static_cast<std::byte*>(buffer.data);
  std::int64_t left = buffer.count;
  for (const std::int64_t count : counts) {
    if (count < 0 || count > left)
      throw InvalidArgument(
          "split: the counts must be positive or zero and add up to the " +
          std::to_string(buffer.count) + " elements of the buffer");
    parts.push_back({at, count, buffer.type, buffer.device});
    at += parts.back().bytes();
    left -= count;
  }
  if (left != 0)
    throw InvalidArgument("split: the counts leave out " +
                          std::to_string(left) + " elements of the buffer");
  return parts;
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kAverage:
      return "average";
    case ReduceOp::kBand:
      return "band";
    case ReduceOp::kBor:
      return "bor";
    case ReduceOp::kBxor:
      return "bxor";
  }
  return "unknown reduction";
}

bool is_defined(ReduceOp op, DataType type) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return true;
    case ReduceOp::kAverage:
      return is_floating_point(type);
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return !is_floating_point(type) && type != DataType::kBool;
  }
  return false;
}

}  // namespace lockstep
