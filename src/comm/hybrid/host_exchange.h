// The first step of a collective where several ranks share a host: the ranks
// compare their calls, and exchange a few elements.
//
//   in the host      every rank gives the others its call and its elements
//   between hosts    the first ranks of the hosts give each other the call and
//                    the elements, reduced or joined, of their hosts
//   in the host      the first rank gives the others the result
//
// So h hosts of k ranks send h (h - 1) messages over the network; an exchange
// between all pairs of ranks sends h (h - 1) k^2. The price is two operations
// in shared memory, some microseconds each. The memory is 256 bytes for each
// rank of the host.
//
// A barrier, and an all_reduce, all_gather or broadcast of at most 176 bytes
// per rank, are complete afterwards. Not so: a mean over hosts of different
// numbers of ranks, all_gather_v, and an all_gather whose result does not fit a
// control message.
//
// Threads: the thread that carries out the group's collective.
// Errors:  Mismatch with every rank's call, on the first rank of each host; it
//          reaches the other ranks as the group's fault. Those of WireCore's
//          and HostGroup's waits.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "src/comm/hybrid/host_group.h"
#include "src/comm/hybrid/host_map.h"
#include "src/comm/operation/routes.h"
#include "src/comm/wire/control_exchange.h"
#include "src/comm/wire/wire_core.h"

namespace lockstep {

class HostExchange {
 public:
  // For rank `rank`. The others must outlive it.
  HostExchange(int rank, const HostMap& hosts, HostGroup& here);

  // The ranks with which this rank exchanges messages.
  std::vector<int> peers() const {
    return index_ == 0 ? others_ : std::vector<int>{};
  }

  // Returns whether `operation` is complete; otherwise the ranks have only
  // compared their calls. The answer is the same on every rank.
  bool run(WireCore& core, ControlExchange& control, const Operation& operation,
           Deadline deadline);

  // The operation inside the host that run() had started when it threw.
  Work take_abandoned() { return std::exchange(inside_, {}); }

 private:
  // What happens with the elements that the ranks bring.
  enum class Combine { kNone, kReduce, kJoin, kPass };

  struct Call;

  Combine choose(Call& call) const;
  void compare_inside(Call& call);
  void compare_hosts(const Call& call);
  std::vector<int> behind_late_ranks(ControlExchange& control) const;
  void write_message(const Call& call);
  void append_part(const Call& call);
  const std::byte* elements_of(int index) const;
  void combine_hosts(const Call& call);
  void spread_inside(const Call& call);
  void deliver(const Call& call) const;
  void carry_out(const Call& call, Operation operation);

  const int rank_;
  const HostMap& hosts_;
  HostGroup& here_;
  const std::size_t host_;   // this rank's
  const std::size_t index_;  // this rank's in its host
  std::vector<int> others_;  // the first ranks of the other hosts
  // This rank's call and elements, and those of all ranks of the host.
  std::vector<std::byte> own_;
  std::vector<std::byte> all_;
  std::vector<std::byte> message_;  // to the other hosts
  std::vector<std::byte> result_;
  Work inside_;
};

}  // namespace lockstep
