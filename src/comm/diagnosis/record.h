// A dump: the record that a rank writes about itself after an error or on
// request. docs/formats/record.md describes the file.
//
// Threads: write_record() may be called from any thread.
// Errors:  InvalidArgument for text that is not a record, SystemError when a
//          file cannot be written or read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/comm/diagnosis/operation_ring.h"
#include "src/comm/operation/backend.h"

namespace lockstep {

// Times are seconds since 1970, by the clock of the rank's host.
struct OperationRecord {
  std::uint64_t number = 0;  // counts the rank's operations from 0
  std::int64_t group = 0;    // GroupRecord::id
  OperationState state = OperationState::kStarted;
  Signature signature{};
  int peer = 0;  // of messages, as in Operation
  int tag = 0;
  std::string label{};
  double started_at = 0;
  double ended_at = 0;   // once it is settled
  bool awaited = false;  // the program waited for it

  friend bool operator==(const OperationRecord&,
                         const OperationRecord&) = default;
};

struct GroupRecord {
  std::int64_t id = 0;  // within this record
  std::string name{};   // the same on every rank
  std::string backend{};
  int rank = 0;  // this rank's number in the group
  int size = 1;
  std::vector<int> members{};  // as GroupIdentity::members
  bool left = false;
  // Sequence numbers of collectives; 0: none.
  std::uint64_t last_started = 0;
  std::uint64_t last_completed = 0;

  int rank_in_job(int r) const;
  // For messages, where a duplicate has its group's.
  std::string shown_name() const {
    return name.substr(0, name.find(kDuplicatePart));
  }

  friend bool operator==(const GroupRecord&, const GroupRecord&) = default;
};

// An error that left a Work's wait().
struct FailureRecord {
  double at = 0;
  std::int64_t group = 0;
  std::uint64_t operation = 0;  // OperationRecord::number
  std::string type{};           // "PeerFailure", …
  std::string message{};
  int culprit = -1;  // the rank in the job that it names, or -1

  friend bool operator==(const FailureRecord&, const FailureRecord&) = default;
};

struct RankRecord {
  std::string version{};  // of Lockstep
  // The same on every rank of a job, and different for each job; "" if a rank
  // has not learned it.
  std::string job{};
  int rank = 0;
  int world_size = 1;
  std::string host{};
  std::int64_t pid = 0;
  double written_at = 0;
  std::string reason{};  // why it was written: "failure" or "request"
  std::vector<FailureRecord> failures{};
  std::vector<GroupRecord> groups{};
  std::vector<OperationRecord> operations{};  // oldest first

  // Null if the record has no such group.
  const GroupRecord* find_group(std::int64_t id) const;

  friend bool operator==(const RankRecord&, const RankRecord&) = default;
};

// One line for messages, like describe(Operation).
std::string describe(const OperationRecord& operation);

// The same without sizes: "all_reduce #412".
std::string short_name(const Signature& signature);

// The file's text. Bytes that are not UTF-8 are replaced.
std::string encode_record(const RankRecord& record);
RankRecord decode_record(std::string_view text);

// The name of rank `rank`'s file within a folder of dumps.
std::string record_file_name(int rank);

// Replaces the rank's file in `folder` atomically; creates `folder` if it is
// missing.
void write_record(const std::filesystem::path& folder,
                  const RankRecord& record);

}  // namespace lockstep
