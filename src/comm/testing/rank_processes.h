// Runs a test's ranks as processes: one new process per rank, over a TCP store
// that the test serves.
//
// The test reads the ranks' output line by line, and so learns that a rank has
// reached a point.
//
// Threads: one thread at a time.
// Errors:  SystemError when a program cannot be started; Timeout when a rank
//          does not print the expected line, or does not end.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/net/file_descriptor.h"
#include "src/store/tcp_store_server.h"

namespace lockstep {

class RankProcesses {
 public:
  // Starts `command` (program and arguments) once for each of `ranks` ranks,
  // with the variables of torchrun and LOCKSTEP_STORE, and `extra` ("A=b").
  RankProcesses(int ranks, const std::vector<std::string>& command,
                const std::vector<std::string>& extra = {});

  // Kills and reaps all remaining processes.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  pid_t pid(int rank) const { return at(rank).pid; }
  int size() const { return static_cast<int>(ranks_.size()); }

  // The store that the test serves, and its sudden end.
  const std::string& store_url() const { return server_->url(); }
  static constexpr const char* kToken = "a token of the test";
  void stop_store() { server_.reset(); }
  void send_signal(int rank, int signal);

  // Reads rank `rank`'s output until a line contains `text`, and returns that
  // line.
  std::string wait_for_line(int rank, const std::string& text,
                            Deadline deadline);

  // Waits until rank `rank` has ended and returns its exit code, or 128 + the
  // signal that killed it.
  int wait_for_end(int rank, Deadline deadline);

  // Lets time pass; returns early, with false, when rank `rank` ends.
  bool lives_until(int rank, Deadline moment) const;

  // All output of rank `rank` so far (standard output and error).
  const std::string& output(int rank) const { return at(rank).output; }

 private:
  struct Rank {
    pid_t pid = -1;
    bool reaped = false;
    int exit_code = 0;
    FileDescriptor process;  // a pidfd
    FileDescriptor pipe;
    std::string output;
  };
  const Rank& at(int rank) const {
    return ranks_.at(static_cast<std::size_t>(rank));
  }
  Rank& at(int rank) { return ranks_.at(static_cast<std::size_t>(rank)); }
  void start(int rank, const std::vector<std::string>& command,
             const std::vector<std::string>& environment);
  bool read_more(Rank& rank, Deadline deadline);

  std::unique_ptr<TcpStoreServer> server_;
  std::vector<Rank> ranks_;
};

}  // namespace lockstep
