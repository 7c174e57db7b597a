#include "src/comm/operation/operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/printable.h"
#include "src/comm/operation/captured_graph.h"

namespace lockstep {
namespace {

std::uint32_t hash_of_counts(std::span<const Buffer> buffers) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a over whole counts
  for (const Buffer& buffer : buffers) {
    hash ^= static_cast<std::uint64_t>(buffer.count);
    hash *= 0x100000001b3;
    hash ^= hash >> 29;
  }
  return static_cast<std::uint32_t>(hash ^ (hash >> 32));
}

}  // namespace

std::string_view name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::kBarrier:
      return "barrier";
    case OperationKind::kBroadcast:
      return "broadcast";
    case OperationKind::kAllReduce:
      return "all_reduce";
    case OperationKind::kAllGather:
      return "all_gather";
    case OperationKind::kReduce:
      return "reduce";
    case OperationKind::kGather:
      return "gather";
    case OperationKind::kScatter:
      return "scatter";
    case OperationKind::kReduceScatter:
      return "reduce_scatter";
    case OperationKind::kAllToAll:
      return "all_to_all";
    case OperationKind::kSend:
      return "send";
    case OperationKind::kReceive:
      return "receive";
    case OperationKind::kShardedUpdate:
      return "sharded_update";
    case OperationKind::kReplay:
      return "replay";
  }
  return "unknown operation";
}

bool reduces(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduce ||
         kind == OperationKind::kReduceScatter ||
         kind == OperationKind::kShardedUpdate;
}

bool has_root(OperationKind kind) {
  return kind == OperationKind::kBroadcast || kind == OperationKind::kReduce ||
         kind == OperationKind::kGather || kind == OperationKind::kScatter;
}

bool is_point_to_point(OperationKind kind) {
  return kind == OperationKind::kSend || kind == OperationKind::kReceive;
}

namespace {

// The list whose counts are the same on every rank.
std::span<const Buffer> common_list(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::kAllGather:
      return operation.division == Division::kEven ? operation.inputs
                                                   : operation.outputs;
    case OperationKind::kReduceScatter:
      return operation.division == Division::kEven ? operation.outputs
                                                   : operation.inputs;
    case OperationKind::kGather:
    case OperationKind::kSend:
    case OperationKind::kAllToAll:
    case OperationKind::kShardedUpdate:
      return operation.inputs;
    case OperationKind::kBarrier:
    case OperationKind::kBroadcast:
    case OperationKind::kAllReduce:
    case OperationKind::kReduce:
    case OperationKind::kScatter:
    case OperationKind::kReceive:
    case OperationKind::kReplay:
      return operation.outputs;
  }
  return {};
}

}  // namespace

Device device_of(const Operation& operation) {
  if (operation.graph != nullptr) return operation.graph->device();
  const auto list =
      operation.inputs.empty() ? operation.outputs : operation.inputs;
  return list.empty() ? Device{} : list.front().device;
}

Signature signature_of(const Operation& operation) {
  const auto buffers = common_list(operation);
  Signature signature;
  signature.sequence = operation.sequence;
  signature.kind = static_cast<std::uint8_t>(operation.kind);
  signature.division = static_cast<std::uint8_t>(operation.division);
  signature.reduction = static_cast<std::uint8_t>(operation.reduction);
  signature.root = operation.root;
  signature.buffers = static_cast<std::uint32_t>(buffers.size());
  if (!buffers.empty())
    signature.type = static_cast<std::uint8_t>(buffers.front().type);
  if (operation.kind == OperationKind::kAllToAll &&
      operation.division == Division::kPerRank)
    return signature;  // the counts may differ between ranks
  for (const Buffer& buffer : buffers)
    signature.elements += static_cast<std::uint64_t>(buffer.count);
  signature.layout = buffers.size() > 1 ? hash_of_counts(buffers) : 0;
  if (operation.graph != nullptr) {
    signature.elements = operation.graph->contents().operations;
    signature.layout = operation.graph->contents().hash;
  }
  return signature;
}

std::string describe(const Signature& signature) {
  const auto kind = static_cast<OperationKind>(signature.kind);
  const bool uneven =
      static_cast<Division>(signature.division) == Division::kPerRank;
  std::string line = fmt::format("{}{} #{}", name_of(kind), uneven ? "_v" : "",
                                 signature.sequence);
  if (kind == OperationKind::kBarrier) return line;
  if (kind == OperationKind::kReplay)
    return fmt::format("{} (a graph of {} operations)", line,
                       signature.elements);
  std::string details;
  if (reduces(kind))
    details = fmt::format("{}, ",
                          name_of(static_cast<ReduceOp>(signature.reduction)));
  if (has_root(kind)) details += fmt::format("root {}, ", signature.root);
  if (signature.buffers > 1 && !uneven)
    details += fmt::format("{} buffers, ", signature.buffers);
  const auto type = name_of(static_cast<DataType>(signature.type));
  if (kind == OperationKind::kAllToAll && uneven)
    return fmt::format("{} ({})", line, type);
  return fmt::format("{} ({}{} x {})", line, details, signature.elements, type);
}

std::string describe(const Signature& signature, int peer, int tag,
                     std::string_view label) {
  std::string line = describe(signature);
  const auto kind = static_cast<OperationKind>(signature.kind);
  if (kind == OperationKind::kSend)
    line += fmt::format(" to rank {}, tag {}", peer, tag);
  if (kind == OperationKind::kReceive)
    line += fmt::format(
        " from {}, tag {}",
        peer == kAnySource ? "any rank" : fmt::format("rank {}", peer), tag);
  if (!label.empty()) line += fmt::format(" at {}", printable(label));
  return line;
}

std::string describe(const Operation& operation) {
  return describe(signature_of(operation), operation.peer, operation.tag,
                  operation.label);
}

std::string_view AnnouncedCall::label_text() const {
  return {label, ::strnlen(label, kLabelBytes)};
}

AnnouncedCall announced_call_of(const Operation& operation) {
  AnnouncedCall call{.signature = signature_of(operation)};
  set_label(call.label, operation.label);
  return call;
}

void set_label(std::span<char, AnnouncedCall::kLabelBytes> room,
               std::string_view label) {
  const std::size_t length = copy_shortened(label, room);
  if (length < room.size()) room[length] = '\0';
}

std::string describe_mismatch(std::span<const AnnouncedCall> calls, int rank,
                              std::string_view group) {
  std::map<std::string, std::vector<int>> callers;
  std::set<std::string> kinds;
  for (std::size_t r = 0; r < calls.size(); ++r) {
    const std::string kind = describe(calls[r].signature);
    const std::string label = printable(calls[r].label_text());
    callers[label.empty() ? kind : fmt::format("{} at {}", kind, label)]
        .push_back(static_cast<int>(r));
    kinds.insert(kind);
  }
  std::string text = fmt::format(
      "the ranks of group \"{}\" called operations that do not fit together "
      "(seen on rank {} of {})",
      group, rank, calls.size());
  for (const auto& [call, ranks] : callers)
    text += fmt::format("\n  called:  {} by rank{} {}", call,
                        ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
  if (kinds.size() == 1)
    text += static_cast<OperationKind>(calls.front().signature.kind) ==
                    OperationKind::kReplay
                ? "\n  differs: the operations that were captured"
                : "\n  differs: the sizes within the list of buffers";
  return text +
         "\n  likely:  the ranks took different branches, or one runs a step "
         "more than the others"
         "\n  next:    make every rank call the same operations in the same "
         "order, with the same sizes and types";
}

std::vector<std::int64_t> counts_of(const Operation& operation) {
  std::vector<std::int64_t> counts;
  if (operation.kind != OperationKind::kAllToAll ||
      operation.division != Division::kPerRank)
    return counts;
  for (const Buffer& buffer : operation.inputs) counts.push_back(buffer.count);
  for (const Buffer& buffer : operation.outputs) counts.push_back(buffer.count);
  return counts;
}

void check_counts(const Operation& operation,
                  std::span<const std::vector<std::int64_t>> counts,
                  std::string_view group) {
  const std::size_t ranks = counts.size();
  for (std::size_t from = 0; from < ranks; ++from)
    for (std::size_t to = 0; to < ranks; ++to) {
      const std::int64_t sent = counts[from].at(to);
      const std::int64_t expected = counts[to].at(ranks + from);
      if (sent != expected)
        throw Mismatch(fmt::format(
            "{} of group \"{}\": rank {} has {} elements for rank {}, which "
            "expects {}\n  next:    give outputs[{}] on rank {} as many "
            "elements as inputs[{}] has on rank {}",
            describe(operation), group, from, sent, to, expected, from, to, to,
            from));
    }
}

void check_message(const Operation& receive, int source, const Signature& sent,
                   std::string_view group) {
  const Signature mine = signature_of(receive);
  if (sent.elements == mine.elements && sent.type == mine.type) return;
  throw Mismatch(fmt::format(
      "a message of group \"{}\" does not match the buffer of its receive\n"
      "  sent:    {} x {} by rank {}\n  called:  {}\n"
      "  next:    receive the number of elements and the type that are sent; "
      "tags distinguish messages",
      group, sent.elements, name_of(static_cast<DataType>(sent.type)), source,
      describe(receive)));
}

}  // namespace lockstep
