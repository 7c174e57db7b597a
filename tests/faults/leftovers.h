// Checks that faults leave nothing behind on a machine.
//
// Threads: one thread at a time; isolate() while the process has no other
//          thread.
#pragma once

#include <filesystem>
#include <string>

#include "own_resources.h"

namespace lockstep {

// Gives this process and its children their own network (only loopback) and
// /dev/shm, so everything found in them belongs to these processes. Returns "",
// or why isolation is impossible here.
//
// Further networks like this one, joined by veth, could serve as hosts with a
// link that a test cuts.
std::string isolate();

// Owns a folder for temporary files and checks for other leftovers.
class Leftovers {
 public:
  // `isolated`: also checks ports, names of sockets and /dev/shm.
  enum class Scope { kOwn, kIsolated };
  explicit Leftovers(Scope scope);
  ~Leftovers();
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;

  // Lists the remaining processes, ports, names, mappings and files: "" when
  // nothing is left.
  std::string look() const;

 private:
  const Scope scope_;
  std::filesystem::path folder_;
  OwnResources earlier_{};
};

}  // namespace lockstep
