#include "lockstep/comm/objects.h"

#include <cstdint>

namespace lockstep {

Bytes broadcast_bytes(ProcessGroup& group, std::span<const std::byte> object,
                      int root, const CallOptions& options) {
  std::vector<std::int64_t> size{static_cast<std::int64_t>(object.size())};
  group.broadcast(view(size), root, options).wait();
  Bytes bytes(static_cast<std::size_t>(size[0]));
  if (group.rank() == root) bytes.assign(object.begin(), object.end());
  group.broadcast(view_bytes(bytes), root, options).wait();
  return bytes;
}

std::vector<Bytes> all_gather_bytes(ProcessGroup& group,
                                    std::span<const std::byte> object,
                                    const CallOptions& options) {
  std::vector<std::int64_t> mine{static_cast<std::int64_t>(object.size())};
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.size()));
  group.all_gather(view(mine), view(sizes), options).wait();
  std::vector<Bytes> objects;
  std::vector<Buffer> buffers;
  for (const std::int64_t size : sizes)
    objects.emplace_back(static_cast<std::size_t>(size));
  for (Bytes& bytes : objects) buffers.push_back(view_bytes(bytes));
  group.all_gather_v(view_bytes(object), buffers, options).wait();
  return objects;
}

}  // namespace lockstep
