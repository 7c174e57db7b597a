// The process here that is a host's launcher, or leads to it as ssh does, for
// `lockstep run -H`.
//
// Threads: one thread at a time.
// Errors:  those of WorkerProcess; InvalidArgument for an order that is not
//          UTF-8.
#pragma once

#include <cstddef>
#include <string>

#include "src/launch/nodes/host_order.h"
#include "src/launch/output/output_tagger.h"
#include "src/launch/output/screen.h"
#include "src/launch/worker/worker_process.h"
#include "src/net/pipe.h"
#include "src/net/poll_set.h"

namespace lockstep {

class HostLauncher {
 public:
  // Starts the process and sends it the order. `screen`, which must outlive it,
  // shows its output: bytes as they come where its job has no other host
  // (`is_alone`), otherwise lines.
  HostLauncher(const HostOrder& order, bool is_alone, WorkerCommand command,
               Screen& screen);

  const std::string& host() const { return host_; }
  int rank() const { return rank_; }  // of the host
  bool has_ended() const { return ended_; }
  // Before the job was over.
  bool was_lost() const { return lost_; }
  void note_lost() { lost_ = true; }
  // Because it had no ranks.
  bool was_dropped() const { return dropped_; }
  // How it ended.
  const ExitStatus& status() const { return process_.last_status(); }

  // Returns whether the process has ended since the last call.
  bool look_for_end();

  // Adds its output, its end and what is unsent to `set`.
  void watch(PollSet& set);

  // Sends the signal to the launcher there.
  void signal(int number);
  // Kills the process here.
  void kill() { process_.signal_group(SIGKILL); }
  void drop() {
    dropped_ = true;
    kill();
  }

 private:
  // The launcher there has cut longer lines, and then tagged them.
  static constexpr std::size_t kMostLineBytes =
      OutputTagger::kMaxLineBytes + 64;

  HostLauncher(const HostOrder& order, bool is_alone, WorkerCommand command,
               Screen& screen, Pipe input);

  bool read(FileDescriptor& pipe);
  void send();

  const std::string host_;
  const int rank_;
  const bool is_alone_;
  Screen& screen_;
  std::string unsent_;
  FileDescriptor input_;
  WorkerProcess process_;
  OutputTagger out_;
  OutputTagger err_;
  bool ended_ = false;
  bool lost_ = false;
  bool dropped_ = false;
};

}  // namespace lockstep
