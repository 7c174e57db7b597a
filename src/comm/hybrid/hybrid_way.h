// all_reduce and broadcast when several ranks share a host.
//
// The elements are split into chunks; a chunk has a block for each of the first
// ranks of every host (as many as the smallest host has), and a block has a
// piece for each host:
//
//   all_reduce   reduce-scatter a chunk's blocks inside the host; all-reduce
//                each block among the ranks that hold it on all hosts;
//                all-gather the blocks inside the host
//   broadcast    inside the root's host in shared memory; from its ranks, a
//                block each, to the other hosts; all-gather there
//
// So each host sends as much as a single rank would, and all ranks of a host
// send at once. Chunks overlap: while one is on the wire, the next is reduced
// and the previous one gathered. A chunk that spans several buffers passes
// through memory of this object. Cost: six chunks of a few MiB of shared
// memory, allocated by the first such operation.
//
// Threads: those of CollectiveWay.
// Errors:  those of CollectiveWay.
// Source:  the two-level all-reduce of Horovod's NCCLHierarchicalAllreduce and
//          of MPI libraries (reduce-scatter, all-reduce across, all-gather).

#pragma once

#include "src/comm/hybrid/host_exchange.h"
#include "src/comm/hybrid/host_group.h"
#include "src/comm/hybrid/host_map.h"
#include "src/comm/wire/collective_way.h"

namespace lockstep {

class HybridWay : public CollectiveWay {
 public:
  HybridWay(const GroupIdentity& identity, HostMap hosts, Store& store,
            const Settings& settings);
  HybridWay(int rank, HostMap hosts, HostGroup here);

  std::string_view name() const override { return "hybrid"; }
  std::vector<int> first_peers() const override { return exchange_.peers(); }
  bool compare(WireCore& core, ControlExchange& control,
               const Operation& operation, Deadline deadline) override;
  bool takes(const Operation& operation) const override;
  void run(WireCore& core, const Operation& operation, int tag,
           Deadline deadline) override;
  void calm_down() noexcept override;
  std::unique_ptr<CollectiveWay> duplicate(const GroupIdentity& identity,
                                           int number) const override;
  bool has_peers_on_host() const override { return here_.size() > 1; }
  void check_peers() override { here_.check_peers(); }
  void abort(std::string_view reason) noexcept override { here_.abort(reason); }
  void leave() noexcept override { here_.leave(); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    return here_.allocate(bytes);
  }

 private:
  const int rank_;
  const HostMap hosts_;
  HostGroup here_;
  HostExchange exchange_;
  // Operations that run() or compare() had started inside the host when it
  // threw.
  std::vector<Work> abandoned_;
  // For chunks that span several buffers; kept from one operation to the next.
  std::shared_ptr<std::byte> staging_;
  std::size_t staging_bytes_ = 0;
};

}  // namespace lockstep
