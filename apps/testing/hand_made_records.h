// Hand-made records of a job with four ranks.
#pragma once

#include <string>

#include "src/comm/diagnosis/record.h"

namespace lockstep {

inline constexpr double kNow = 1'700'000'000;  // the time of all records

// A rank of a job with four ranks, in the group "default" (0) and the given
// further groups.
inline RankRecord rank_record(int rank) {
  RankRecord record{.rank = rank, .world_size = 4};
  record.host = "node-" + std::to_string(rank / 2);
  record.written_at = kNow;
  record.groups.push_back(
      {.id = 0, .name = "default", .rank = rank, .size = 4});
  return record;
}

inline void add_group(RankRecord& record, const GroupRecord& group) {
  record.groups.push_back(group);
}

// An all_reduce of `elements` that started `ago` seconds before the record was
// written.
inline OperationRecord& add(RankRecord& record, std::uint64_t sequence,
                            double ago, std::uint64_t elements = 16) {
  OperationRecord operation{.number = record.operations.size(),
                            .started_at = kNow - ago};
  operation.signature.kind =
      static_cast<std::uint8_t>(OperationKind::kAllReduce);
  operation.signature.sequence = sequence;
  operation.signature.elements = elements;
  record.groups[0].last_started =
      std::max(record.groups[0].last_started, sequence);
  record.operations.push_back(operation);
  return record.operations.back();
}

inline void complete(OperationRecord& operation, double ago) {
  operation.state = OperationState::kCompleted;
  operation.ended_at = kNow - ago;
}

inline void fail(RankRecord& record, const std::string& type, int culprit = -1,
                 const std::string& message = "what it said\n  next:    …") {
  OperationRecord& operation = record.operations.back();
  operation.state = OperationState::kFailed;
  operation.ended_at = kNow;
  record.failures.push_back({.at = kNow,
                             .group = operation.group,
                             .operation = operation.number,
                             .type = type,
                             .message = message,
                             .culprit = culprit});
}

inline void wait_in(OperationRecord& operation) { operation.awaited = true; }

}  // namespace lockstep
