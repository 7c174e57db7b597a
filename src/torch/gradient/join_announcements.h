// Ranks that run out of data, as Horovod's join() has them: they take part in
// what the other ranks reduce, with zeros, until every rank has joined.
//
// A rank that has joined does not know what the others do next. So once a group
// allows joins, its ranks tell each other before each of Horovod's operations
// what it is, by one small all-gather in the group's own order, which every
// operation that announces nothing mismatches. One kind of announcement says
// that a rank has joined.
//
// Threads: of() from any; the rest is single-threaded.
// Errors:  on every rank, joined ones too: Mismatch where ranks announce
//          different operations, InvalidArgument for an operation that ranks
//          without data cannot take part in. What ProcessGroup's operations
//          throw, Timeout after the group's included.
// Source:  horovod.torch.join.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// What one rank is about to do, as it travels.
struct HorovodCall {
  enum class Kind : std::int64_t {
    kJoined,         // nothing of its own: it takes part in the others'
    kAllReduce,      // of one tensor
    kGradients,      // of an optimizer's pass
    kMoreGradients,  // whether a rank's later passes brought more of them
    kOther,          // what joined ranks cannot take part in
  };
  static constexpr std::size_t kNameBytes = 37;  // makes no round number

  Kind kind = Kind::kJoined;
  std::int64_t op = 0;         // kAllReduce: a ReduceOp
  std::int64_t type = 0;       // of its elements: an at::ScalarType
  std::int64_t device = 0;     // an at::DeviceType
  std::int64_t elements = 0;   // how many there are
  std::int64_t optimizer = 0;  // kGradients, kMoreGradients: its number
  char name[kNameBytes] = {};  // kOther, for messages; cut off if need be

  static HorovodCall all_reduce(const at::Tensor& tensor, ReduceOp op);
  static HorovodCall other(const std::string& name);
};

// An optimizer, which does for a joined rank what the others announce of it.
class JoinedGradients {
 public:
  virtual ~JoinedGradients() = default;
  virtual void take_part(HorovodCall::Kind kind) = 0;
  // Every rank has joined: drops the gradients of passes that were not reduced,
  // and their count.
  virtual void forget_passes() = 0;
};

class JoinAnnouncements {
 public:
  // The one of this group, which must not be null.
  static std::shared_ptr<JoinAnnouncements> of(
      const std::shared_ptr<ProcessGroup>& group);

  explicit JoinAnnouncements(const std::shared_ptr<ProcessGroup>& group);

  // From now on operations are announced. Every rank calls it at the same
  // point; a second time it does nothing but wait for the others.
  void allow();
  bool is_allowed() const { return allowed_; }

  // The number under which all ranks know the optimizer that they make at this
  // point; it takes part until it is gone.
  std::int64_t enroll(std::weak_ptr<JoinedGradients> optimizer);

  // A rank that has joined takes part in an all-reduce of a device's tensors on
  // the device of its own last one.
  void use_device_of(const at::Tensor& tensor);

  // Tells the others what this rank does next, where joins are allowed; waits
  // for them.
  void announce(const HorovodCall& call);
  // The same at the beginning of what an optimizer reduces, until which ends
  // joined ranks can take part in nothing else; end_gradients() says that.
  void announce_gradients(std::int64_t optimizer);
  void end_gradients() { joined_in_pass_.clear(); }
  // The same before the ranks ask each other for what later passes brought.
  void announce_question(std::int64_t optimizer);

  // Takes part in what the others announce until every rank has joined. Returns
  // the last rank that did; of those that did after one operation, the highest.
  int join();

 private:
  struct Round {
    std::vector<HorovodCall> calls;  // by rank
    int active = -1;                 // the highest rank that has not joined
    std::string joined;              // the ranks that have, for messages
  };

  Round exchange(const HorovodCall& mine);
  Round tell(const HorovodCall& mine);
  void check_same(const Round& round) const;
  void check_possible(const Round& round) const;
  std::string lines_of(const Round& round) const;
  void take_part(const HorovodCall& call);
  void take_part_in_gradients(const HorovodCall& call);
  std::shared_ptr<ProcessGroup> group() const;

  std::weak_ptr<ProcessGroup> group_;
  std::string name_;  // of the group
  bool allowed_ = false;
  std::map<at::DeviceType, at::Device> devices_;
  int last_ = 0;  // the highest rank of those that made the last operation
  std::vector<std::weak_ptr<JoinedGradients>> optimizers_;
  std::string joined_in_pass_;  // ranks; empty between passes, and where none
};

// Throws InvalidArgument where `group` allows joins, of which `what` knows
// nothing: ranks that have joined would wait in vain.
void refuse_joins(const std::shared_ptr<ProcessGroup>& group, const char* what);

}  // namespace lockstep
