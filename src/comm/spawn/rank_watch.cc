#include "src/comm/spawn/rank_watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "src/comm/spawn/rank_run.h"
#include "src/net/pipe.h"
#include "src/net/poll_set.h"
#include "src/net/process_handle.h"

namespace lockstep::internal {
namespace {

// Between two looks at the ranks where the kernel has no pidfds.
constexpr std::chrono::milliseconds kLook{20};

FileDescriptor try_to_open(pid_t pid) {
  try {
    return open_process(pid);
  } catch (const SystemError& error) {
    if (means_no_pidfds(error.error_number())) return {};
    throw;
  }
}

// Reads what has come. Closes the pipe at its end.
void read_record(FileDescriptor& pipe, std::string& record) {
  std::array<char, 4096> part;
  while (pipe) {
    const ssize_t count = ::read(pipe.get(), part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) return pipe.reset();
    const auto room = kMaxRecordBytes - record.size();
    record.append(part.data(), std::min(room, static_cast<std::size_t>(count)));
  }
}

}  // namespace

RankWatch::~RankWatch() {
  signal_all(SIGKILL);
  for (const Rank& rank : ranks_)
    while (!rank.ended && ::waitpid(rank.pid, nullptr, 0) < 0 && errno == EINTR)
      continue;
}

void RankWatch::add(pid_t pid, FileDescriptor result) {
  ranks_.push_back({.pid = pid, .process = {}, .result = std::move(result)});
  make_nonblocking(ranks_.back().result);
  ranks_.back().process = try_to_open(pid);
}

std::optional<FailedRank> RankWatch::wait(const std::vector<int>& owners) {
  while (runs()) {
    wait_once(owners);
    take_ended();
    advance();
  }
  if (!deaths_.any()) return std::nullopt;
  const Death& cause = deaths_.cause();
  Rank& rank = ranks_[static_cast<std::size_t>(cause.id)];
  return FailedRank{cause.id, cause.end.status, std::move(rank.record)};
}

bool RankWatch::runs() const {
  return std::ranges::any_of(ranks_,
                             [](const Rank& rank) { return !rank.ended; });
}

void RankWatch::wait_once(const std::vector<int>& owners) {
  PollSet set;
  Deadline deadline = std::min(limit_, deaths_.cause_due());
  for (Rank& rank : ranks_) {
    if (rank.ended) continue;
    if (!rank.process) deadline = std::min<Deadline>(deadline, kLook);
    set.watch(rank.process.get(), POLLIN, [] {});
    set.watch(rank.result.get(), POLLIN,
              [&rank] { read_record(rank.result, rank.record); });
  }
  // Ranks that are killed end soon.
  if (state_ != State::kIsKilled)
    for (const int owner : owners)
      set.watch(owner, POLLIN,
                [this] { enter(State::kIsKilled, std::chrono::seconds(0)); });
  set.wait(deadline);
}

void RankWatch::take_ended() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    if (rank.ended) continue;
    int status = 0;
    const pid_t reaped = ::waitpid(rank.pid, &status, WNOHANG);
    if (reaped == 0 || (reaped < 0 && errno == EINTR)) continue;
    rank.ended = true;
    read_record(rank.result, rank.record);
    rank.result.reset();
    // Another part of the program may have reaped it; the record remains.
    const bool returned = rank.record.starts_with(kReturned);
    RankEnd end{.status = reaped > 0 ? ExitStatus::of_wait(status)
                                     : ExitStatus{.code = returned ? 0 : 1}};
    if ((returned && end.status.ended_well()) || state_ != State::kRuns)
      continue;
    if (rank.record.starts_with(kLostPeer)) end.note = FaultNote{};
    deaths_.add({.id = static_cast<int>(i),
                 .when = std::chrono::steady_clock::now(),
                 .end = std::move(end)});
  }
}

// Enters the next state, if it is time for it.
void RankWatch::advance() {
  if (state_ == State::kRuns && deaths_.any() && deaths_.know_their_cause()) {
    signal_all(SIGTERM);
    signal_all(SIGCONT);
    enter(State::kEnds, grace_);
  }
  if (state_ == State::kEnds && limit_.expired())
    enter(State::kIsKilled, std::chrono::seconds(0));
}

void RankWatch::enter(State state, std::chrono::nanoseconds limit) {
  state_ = state;
  deaths_.close();
  limit_ = state == State::kIsKilled ? Deadline::never() : Deadline(limit);
  if (state == State::kIsKilled) signal_all(SIGKILL);
}

void RankWatch::signal_all(int signal) const {
  for (const Rank& rank : ranks_) {
    if (rank.ended) continue;
    if (rank.process)
      ::syscall(SYS_pidfd_send_signal, rank.process.get(), signal, nullptr, 0);
    else
      ::kill(rank.pid, signal);
  }
}

}  // namespace lockstep::internal
