// The net below every other check of data-parallel training: every N-th reduced
// pass the ranks compare a fingerprint of the model, and all throw if their
// replicas differ.
//
// A rank hashes its parameters when the pass begins, and its buffers right
// after the last broadcast, since forward() changes them later on. The hashes,
// 40 bytes per rank, travel beside the pass's first reduction, so that no rank
// waits for them. The rest costs only passes whose hashes differ.
//
// A wrapper of a module lists both anew for each comparison: what it remembers
// of the module is what has gone wrong. An optimizer has its parameters alone,
// and no buffers.
//
// Threads: single-threaded. Every rank calls it in the same passes.
// Errors:  InvalidArgument for a negative period, Mismatch on every rank for
//          different ones. From pass_ends(): Mismatch on every rank, with the
//          parameter, the element, the ranks and their values; the group keeps
//          working. Those of ProcessGroup's operations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/consistency.h"
#include "src/torch/compare/fingerprint.h"

namespace lockstep {

class ReplicaWatch {
 public:
  using List = std::function<NamedTensorList()>;
  // When a rank's hash is taken. The program may change parameters in between:
  // ranks that take it at different moments compare nothing.
  enum class Moment : std::uint32_t {
    kBackward,
    kStep,    // of a rank that reduces what .grad holds
    kAbsent,  // it has no pass of its own: the ranks compare nothing
  };

  // Compares every `every`-th pass; never if it is 0. Errors name `group`,
  // whose ranks make one each, at the same time.
  ReplicaWatch(std::int64_t every, std::shared_ptr<ProcessGroup> group,
               List parameters);

  // Whether the next pass is compared.
  bool is_due() const;
  // The ranks have just got the same buffers, if the next pass is compared.
  void buffers_are_equal(const NamedTensorList& buffers);

  // A reduced pass begins. If it is compared, returns the operation in `order`
  // that the caller waits for before pass_ends(); it works on memory of this
  // object, also if the pass is abandoned.
  std::optional<Work> pass_begins(ProcessGroup& order, Moment moment);
  void pass_ends(ProcessGroup& order);
  // Both, for passes in which nothing else travels.
  void compare(ProcessGroup& order);

 private:
  // One rank's.
  struct Record {
    Fingerprint parameters{}, buffers{};  // names included
    std::uint32_t has_buffers = 0;
    Moment moment{};
  };

  template <class Field>
  bool all_equal(Field Record::*field) const;
  [[noreturn]] void throw_difference(ProcessGroup& order,
                                     const NamedTensorList& tensors,
                                     const char* usual) const;

  std::int64_t every_;
  std::shared_ptr<ProcessGroup> group_;
  List list_parameters_;
  std::int64_t pass_ = 0;
  std::optional<std::int64_t> last_equal_;
  std::optional<NamedTensorList> buffers_;  // copies, for the next pass
  // Of the pass under way, if it is compared.
  bool compares_ = false;
  std::optional<NamedTensorList> compared_buffers_;
  std::vector<Record> records_;  // by rank
};

// The rest of an error that says where replicas differ, and when: "after step
// 300", since "after step 200".
struct DifferenceReport {
  std::string when, since, likely, next;
};
// Throws it, as a Mismatch.
[[noreturn]] void throw_replicas_differ(const ProcessGroup& group,
                                        const ReplicaDifference& difference,
                                        const DifferenceReport& report);

// The likely cause that the difference alone tells, otherwise `usual`.
std::string likely_cause(const ReplicaDifference& difference,
                         const std::string& usual);

}  // namespace lockstep
