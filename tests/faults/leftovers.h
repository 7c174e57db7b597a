// What faults leave behind on a machine, or nothing.
//
// Threads: one at a time; isolate() while the process has no other thread.
#pragma once

#include <filesystem>
#include <string>

#include "own_resources.h"

namespace lockstep {

// Gives this process, and those it starts, a network (with nothing but
// loopback) and a /dev/shm of their own, so that whatever is found in them is
// theirs. Returns "", or why that cannot be done here.
//
// Hosts that a link can be cut between would be further networks like this one,
// joined by veth.
std::string isolate();

// A folder for temporary files, and an eye on all else.
class Leftovers {
 public:
  // `isolated`: ports, names of sockets and /dev/shm are looked at too.
  enum class Scope { kOwn, kIsolated };
  explicit Leftovers(Scope scope);
  ~Leftovers();
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;

  // What there is of processes, ports, names, mappings and files: "" when
  // nothing is left.
  std::string look() const;

 private:
  const Scope scope_;
  std::filesystem::path folder_;
  OwnResources earlier_{};
};

}  // namespace lockstep
