#include "src/comm/spawn/server_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <exception>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/comm/spawn/rank_run.h"
#include "src/comm/spawn/spawn_request.h"
#include "src/net/pipe.h"
#include "src/net/process_handle.h"
#include "src/net/unix_socket.h"

namespace lockstep::internal {
namespace {

// The program reads its answers, so it only takes longer when it is stopped; a
// full socket is not to be expected with two messages.
constexpr std::chrono::minutes kAnswer{5};

enum class Answer : char { kStarted, kReturned, kFailed, kRefused, kError };

// The actions of signals that the program had; the ranks get them back.
struct Signals {
  sigset_t mask{};
  struct sigaction child_ended {};
};

void close_range(int first, int last) {
  if (first > last) return;
  constexpr int kCloseRange = 436;  // SYS_close_range, newer than some headers
  if (::syscall(kCloseRange, first, last, 0) == 0) return;
  const int most = static_cast<int>(::sysconf(_SC_OPEN_MAX));
  for (int number = first; number <= std::min(last, most); ++number)
    ::close(number);
}

// Closes all descriptors from 3 on but `kept`.
void close_others(std::vector<int> kept) {
  std::ranges::sort(kept);
  int next = 3;
  for (const int number : kept) {
    close_range(next, number - 1);
    next = number + 1;
  }
  close_range(next, std::numeric_limits<int>::max());
}

void fill_standard_streams() {
  for (int number = 0; number < 3; ++number)
    if (::fcntl(number, F_GETFD) < 0)
        // The lowest free number, which is this one.
        [[maybe_unused]]
      const int opened = ::open("/dev/null", O_RDWR);
}

class WatchingProcess {
 public:
  WatchingProcess(UnixConnection::Message message, int program,
                  const Signals& signals)
      : job_(std::move(message.descriptors.at(0))),
        file_(std::move(message.descriptors.at(1))),
        output_(std::move(message.descriptors.at(2))),
        error_(std::move(message.descriptors.at(3))),
        folder_(std::move(message.descriptors.at(4))),
        program_(program),
        signals_(signals) {}

  void run() {
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &usual, nullptr);
    try {
      answer(Answer::kStarted);
      const SpawnRequest request = unpack(file_);
      RankWatch watch(request.grace);
      for (int rank = 0; rank < request.ranks; ++rank) start(rank, watch);
      answer_with(watch.wait({job_.descriptor(), program_}));
    } catch (const InvalidArgument& error) {
      answer(Answer::kRefused, {.record = error.what()});
    } catch (const std::exception& error) {
      answer(Answer::kError, {.record = error.what()});
    }
  }

 private:
  void start(int rank, RankWatch& watch) {
    Pipe result = make_pipe();
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) throw SystemError("spawn: could not fork a rank", errno);
    if (pid == 0) become_rank(rank, result.write, parent);
    watch.add(pid, std::move(result.read));
  }

  [[noreturn]] void become_rank(int rank, const FileDescriptor& result,
                                pid_t parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0 ||
        ::dup2(output_.get(), STDOUT_FILENO) < 0 ||
        ::dup2(error_.get(), STDERR_FILENO) < 0)
      ::_exit(1);
    // A folder that was removed is as useless to the program itself.
    [[maybe_unused]] const int moved = ::fchdir(folder_.get());
    close_others({file_.get(), result.get()});
    ::sigaction(SIGCHLD, &signals_.child_ended, nullptr);
    ::sigprocmask(SIG_SETMASK, &signals_.mask, nullptr);
    run_rank(file_, rank, result, StartedAs::kForked);
  }

  void answer(Answer kind, const FailedRank& failed = {}) {
    ArgumentWriter writer;
    writer.write(kind);
    writer.write(failed.rank);
    writer.write(failed.status);
    writer.write(failed.record);
    job_.send(writer.bytes, {}, kAnswer);
  }

  void answer_with(const std::optional<FailedRank>& failed) {
    if (failed)
      answer(Answer::kFailed, *failed);
    else
      answer(Answer::kReturned);
  }

  UnixConnection job_;
  FileDescriptor file_, output_, error_, folder_;
  const int program_;
  const Signals signals_;
};

[[noreturn]] void watch_ranks(UnixConnection::Message message, int socket,
                              int program, const Signals& signals) {
  ::close(socket);
  try {
    WatchingProcess(std::move(message), program, signals).run();
  } catch (const std::exception&) {
    // The program has ended, or sees the socket's end.
    ::_exit(1);
  }
  ::_exit(0);
}

// Whether the program is alive and has sent a message.
bool has_request(int socket, int program) {
  std::array<pollfd, 2> items{{{socket, POLLIN, 0}, {program, POLLIN, 0}}};
  while (::poll(items.data(), items.size(), -1) < 0)
    if (errno != EINTR) return false;
  return items[1].revents == 0;
}

[[noreturn]] void serve(int socket, int program, const Signals& signals) {
  UnixConnection connection{FileDescriptor(socket)};
  try {
    while (has_request(socket, program)) {
      auto message = connection.receive(std::chrono::seconds(1));
      // Without a process for it, the call's socket closes: the program sees
      // that.
      if (::fork() == 0)
        watch_ranks(std::move(message), socket, program, signals);
    }
  } catch (const std::exception&) {
    // The program has closed its socket, as it does when it ends.
  }
  ::_exit(0);
}

}  // namespace

void start_server_process(int socket, int program) {
  if (::fork() != 0) ::_exit(0);
  fill_standard_streams();
  close_others({socket, program});
  Signals signals;
  sigset_t all;
  ::sigfillset(&all);
  // A Ctrl-C is for the program and the ranks.
  ::sigprocmask(SIG_SETMASK, &all, &signals.mask);
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;  // the kernel reaps the children
  ::sigaction(SIGCHLD, &ignored, &signals.child_ended);
  serve(socket, program, signals);
}

std::optional<FailedRank> read_answer(std::span<const std::byte> answer) {
  ArgumentReader reader(answer);
  const auto kind = reader.read<Answer>();
  FailedRank failed;
  failed.rank = reader.read<int>();
  failed.status = reader.read<ExitStatus>();
  failed.record = reader.read<std::string>();
  switch (kind) {
    case Answer::kStarted:
    case Answer::kReturned:
      return {};
    case Answer::kFailed:
      return failed;
    case Answer::kRefused:
      throw InvalidArgument(failed.record);
    case Answer::kError:
      throw Error(failed.record);
  }
  throw InternalError("spawn: the watching process sent an unknown answer");
}

}  // namespace lockstep::internal
