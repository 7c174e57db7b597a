// Connects every rank of a group to every other.
//
// Every rank listens at its own address and puts that and 32 random bytes into
// the store. A rank connects to the ranks before it and sends each that rank's
// bytes, which only readers of the store know; it gets its own bytes in return.
// A rank rejects a process that does not know them, without delaying other
// ranks. The same applies to ranks of another job that found the same port.
//
// Threads: called once by each rank, from any thread.
// Errors:  Timeout naming the ranks that never came; InvalidArgument when two
//          processes claim one rank; the store's errors.
#pragma once

#include <string>
#include <vector>

#include "lockstep/store/store.h"
#include "src/comm/operation/backend.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

struct Mesh {
  // The connected socket to each rank; empty for this rank.
  std::vector<FileDescriptor> sockets;
  // The name of each rank's host.
  std::vector<std::string> hosts;
  // Rank 0's random word, which differs for each group of the same name.
  std::string nonce;
};

// `address` is the numeric address at which others reach this rank.
Mesh connect_mesh(const GroupIdentity& identity, Store& store,
                  const std::string& address, Deadline deadline);

}  // namespace lockstep
