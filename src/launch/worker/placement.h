// Where the workers of a host run: the logical CPUs that each may use.
//
// hwloc tells which CPUs form a core, a socket and a NUMA node, and divides
// them: sockets before cores, so a worker's share seldom spans two sockets.
//
// Threads: any thread.
// Errors:  InvalidArgument for a binding that this host cannot give, and where
//          hwloc's variables describe another machine;
//          SystemError when hwloc cannot read the topology.
#pragma once

#include <memory>
#include <string>
#include <vector>

struct hwloc_topology;

namespace lockstep {

// kAuto:   kCore, where several workers have a logical CPU each and no control
//          group's quota limits the CPUs' time; otherwise kNone.
// kNone:   wherever the launcher may run.
// kCore:   each on its own share of the cores.
// kSocket: on the sockets that hold its share.
// kNuma:   on the NUMA nodes that hold its share.
enum class Binding { kAuto, kNone, kCore, kSocket, kNuma };

class HostTopology {
 public:
  // The CPUs of this host that this process may use.
  HostTopology();
  // A host as hwloc's lstopo describes one: "package:2 core:4 pu:2".
  explicit HostTopology(const std::string& description);

  int cpus() const;

  // The CPUs of each worker, in ascending order; empty where workers are not
  // bound.
  std::vector<std::vector<int>> place(Binding binding, int workers) const;

 private:
  std::unique_ptr<hwloc_topology, void (*)(hwloc_topology*)> topology_;
};

// On this host, by this process's quota. kAuto throws nothing: it warns and
// binds no worker where hwloc fails.
std::vector<std::vector<int>> place_workers(Binding binding, int workers);

}  // namespace lockstep
