// How the ranks of a group come to have a connection each to each.
//
// Every rank listens at its own address and puts that and 32 random bytes into
// the store. A rank connects to those before it and shows each the bytes that
// only the store's readers know; it gets its own in return. Whoever does not
// know them is turned away, and holds up nobody. The same goes for ranks that
// belong to another job but found the same port.
//
// Threads: called once by each rank, from any thread.
// Errors:  Timeout naming the ranks that never came; InvalidArgument when two
//          processes claim one rank; the store's.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/net/file_descriptor.h"
#include "lockstep/store/store.h"

namespace lockstep {

struct Mesh {
  // The connected socket to each rank; none to the own one.
  std::vector<FileDescriptor> sockets;
  // The name of each rank's host.
  std::vector<std::string> hosts;
  // Rank 0's random word: tells this group from earlier ones of its name.
  std::string nonce;
};

// `address` is the number at which others reach this rank.
Mesh connect_mesh(const GroupIdentity& identity, Store& store,
                  const std::string& address, Deadline deadline);

}  // namespace lockstep
