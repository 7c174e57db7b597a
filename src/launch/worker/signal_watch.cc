#include "src/launch/worker/signal_watch.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::array<int, 6> kRequests{SIGINT,  SIGTERM, SIGHUP,
                                       SIGQUIT, SIGTSTP, SIGUSR1};

bool is_ignored(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

// Ignored signals must not be watched, because a signalfd reports them too.
sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGWINCH);
  for (const int signal : kRequests)
    if (!is_ignored(signal)) sigaddset(&set, signal);
  return set;
}

// Sent by a write that fails: its error says enough.
constexpr std::array<int, 2> kOfWrites{SIGPIPE, SIGXFSZ};

}  // namespace

SignalWatch::SignalWatch() {
  sigset_t set = watched_signals();
  descriptor_ =
      FileDescriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor_) throw SystemError("could not make a signalfd", errno);
  // When SIGCHLD is ignored, the kernel discards the exit statuses of children.
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &usual, &original_child_action_);
  for (const int signal : kOfWrites) sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, &original_mask_);
}

SignalWatch::~SignalWatch() {
  take();
  // One that is pending must not be delivered when it is unblocked.
  sigset_t of_writes;
  sigemptyset(&of_writes);
  for (const int signal : kOfWrites) sigaddset(&of_writes, signal);
  const timespec at_once{};
  while (::sigtimedwait(&of_writes, nullptr, &at_once) > 0) continue;
  ::sigaction(SIGCHLD, &original_child_action_, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &original_mask_, nullptr);
}

std::vector<int> SignalWatch::take() {
  std::vector<int> signals;
  signalfd_siginfo info{};
  while (::read(descriptor_.get(), &info, sizeof info) ==
         static_cast<ssize_t>(sizeof info))
    signals.push_back(static_cast<int>(info.ssi_signo));
  return signals;
}

bool asks_to_end(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP ||
         signal == SIGQUIT;
}

bool is_from_terminal(int signal) {
  return signal == SIGINT || signal == SIGQUIT;
}

}  // namespace lockstep
