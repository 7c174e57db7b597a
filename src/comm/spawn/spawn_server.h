// The process that prepare_spawn() forks, and that forks the ranks of spawn().
//
// It has one thread for as long as it lives, so it can fork. For each spawn()
// it forks a process that forks, watches and reaps the ranks, and answers over
// a socket of that call; several calls thus do not meet. All of them end when
// the program ends, also by SIGKILL, and the kernel kills ranks whose watching
// process ends.
//
// Threads: any thread.
// Errors:  NetworkError when the server or the watching process has ended,
//          Timeout when the server does not answer; SystemError; what the
//          watching process reports as InvalidArgument or Error.
#pragma once

#include <sys/types.h>

#include <mutex>
#include <optional>

#include "src/base/own_process.h"
#include "src/comm/spawn/rank_watch.h"
#include "src/comm/spawn/spawn_request.h"
#include "src/net/unix_socket.h"

namespace lockstep::internal {

class SpawnServer {
 public:
  // Forks. The calling process must have one thread.
  SpawnServer();

  // Runs all ranks and returns the one to blame, if any failed.
  std::optional<FailedRank> run(const SpawnRequest& request);

  // False in a forked child of the program.
  bool is_of_this_process() const { return process_.is_current(); }

 private:
  UnixConnection start(const SpawnRequest& request);

  OwnProcess process_;
  std::mutex mutex_;  // guards sending
  UnixConnection connection_;
};

}  // namespace lockstep::internal
