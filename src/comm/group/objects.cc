#include <cstdint>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/comm/operation/operation.h"

namespace lockstep {
namespace {

void check_root(const ProcessGroup& group, int root) {
  if (root >= 0 && root < group.size()) return;
  throw InvalidArgument("there is no rank " + std::to_string(root) +
                        " in group \"" + group.name() + "\" of " +
                        std::to_string(group.size()) +
                        "\n  next:    the root must be a rank of the group");
}

// An empty buffer for each rank, until it is set.
std::vector<Buffer> nothing_each(const ProcessGroup& group) {
  return std::vector<Buffer>(index_of(group.size()), view_bytes({}));
}

}  // namespace

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

std::vector<Bytes> gather_bytes(ProcessGroup& group,
                                std::span<const std::byte> object, int root,
                                const CallOptions& options) {
  check_root(group, root);
  std::vector<std::int64_t> mine{static_cast<std::int64_t>(object.size())};
  std::vector<std::int64_t> sizes(index_of(group.size()));
  group.all_gather(view(mine), view(sizes), options).wait();
  std::vector<Buffer> inputs = nothing_each(group);
  std::vector<Buffer> outputs = nothing_each(group);
  inputs[index_of(root)] = view_bytes(object);
  std::vector<Bytes> objects;
  if (group.rank() == root) {
    for (const std::int64_t size : sizes)
      objects.emplace_back(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < objects.size(); ++i)
      outputs[i] = view_bytes(objects[i]);
  }
  group.all_to_all_v(inputs, outputs, options).wait();
  return objects;
}

Bytes scatter_bytes(ProcessGroup& group, std::span<const Bytes> objects,
                    int root, const CallOptions& options) {
  check_root(group, root);
  constexpr std::int64_t kNotOneARank = -1;
  std::vector<std::int64_t> sizes(index_of(group.size()), kNotOneARank);
  const bool is_root = group.rank() == root;
  if (is_root && objects.size() == sizes.size())
    for (std::size_t i = 0; i < sizes.size(); ++i)
      sizes[i] = static_cast<std::int64_t>(objects[i].size());
  group.broadcast(view(sizes), root, options).wait();
  if (sizes[0] == kNotOneARank)
    throw InvalidArgument(
        "rank " + std::to_string(root) +
        " did not pass one object for each of the " +
        std::to_string(group.size()) + " ranks of group \"" + group.name() +
        "\" to scatter\n  next:    pass as many objects as ranks on the root");
  std::vector<Buffer> inputs = nothing_each(group);
  std::vector<Buffer> outputs = nothing_each(group);
  if (is_root)
    for (std::size_t i = 0; i < objects.size(); ++i)
      inputs[i] = view_bytes(objects[i]);
  Bytes own(static_cast<std::size_t>(sizes[index_of(group.rank())]));
  outputs[index_of(root)] = view_bytes(own);
  group.all_to_all_v(inputs, outputs, options).wait();
  return own;
}

}  // namespace lockstep
