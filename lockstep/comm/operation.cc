#include "lockstep/comm/operation.h"

#include <fmt/format.h>

#include <map>
#include <vector>

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
  }
  return "unknown operation";
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

Signature signature_of(const Operation& operation) {
  const auto buffers =
      operation.inputs.empty() ? operation.outputs : operation.inputs;
  Signature signature;
  signature.sequence = operation.sequence;
  for (const Buffer& buffer : buffers)
    signature.elements += static_cast<std::uint64_t>(buffer.count);
  signature.layout = buffers.size() > 1 ? hash_of_counts(buffers) : 0;
  signature.kind = static_cast<std::uint8_t>(operation.kind);
  if (!buffers.empty())
    signature.type = static_cast<std::uint8_t>(buffers.front().type);
  signature.reduction = static_cast<std::uint8_t>(operation.reduction);
  signature.root = operation.root;
  signature.buffers = static_cast<std::uint32_t>(buffers.size());
  return signature;
}

std::string describe(const Signature& signature) {
  const auto kind = static_cast<OperationKind>(signature.kind);
  std::string line = fmt::format("{} #{}", name_of(kind), signature.sequence);
  if (kind == OperationKind::kBarrier) return line;
  std::string details;
  if (kind == OperationKind::kAllReduce)
    details = fmt::format("{}, ",
                          name_of(static_cast<ReduceOp>(signature.reduction)));
  if (kind == OperationKind::kBroadcast)
    details = fmt::format("from rank {}, ", signature.root);
  if (signature.buffers > 1)
    details += fmt::format("{} buffers, ", signature.buffers);
  return fmt::format("{} ({}{} x {})", line, details, signature.elements,
                     name_of(static_cast<DataType>(signature.type)));
}

std::string describe(const Operation& operation) {
  std::string line = describe(signature_of(operation));
  if (!operation.place.empty()) line += fmt::format(" at {}", operation.place);
  return line;
}

std::string describe_mismatch(std::span<const Signature> signatures, int rank,
                              std::string_view group) {
  std::map<std::string, std::vector<int>> callers;
  for (std::size_t r = 0; r < signatures.size(); ++r)
    callers[describe(signatures[r])].push_back(static_cast<int>(r));
  std::string text = fmt::format(
      "the ranks of group \"{}\" called operations that do not fit together "
      "(seen on rank {} of {})",
      group, rank, signatures.size());
  for (const auto& [call, ranks] : callers)
    text += fmt::format("\n  called:  {} by rank{} {}", call,
                        ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
  if (callers.size() == 1)
    text += "\n  differs: the sizes within the list of buffers";
  return text +
         "\n  likely:  the ranks took different branches, or one runs a step "
         "more than the others"
         "\n  next:    make every rank call the same operations in the same "
         "order, with the same sizes and types";
}

}  // namespace lockstep
