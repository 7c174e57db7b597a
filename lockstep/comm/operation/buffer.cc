#include "lockstep/comm/operation/buffer.h"

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

}  // namespace lockstep
