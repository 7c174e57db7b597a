#include "src/comm/spawn/spawn_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <utility>

#include "lockstep/base/error.h"
#include "src/comm/spawn/server_process.h"
#include "src/net/parents_sockets.h"
#include "src/net/process_handle.h"

namespace lockstep::internal {
namespace {

// The server is idle, so it only takes longer when it is stopped.
constexpr std::chrono::seconds kStarts{60};

struct SocketPair {
  UnixConnection ours;
  FileDescriptor theirs;
};

// No forked child of this process keeps our end: it would hide our end's close.
SocketPair make_socket_pair() {
  std::array<int, 2> ends{};
  FileDescriptor ours = keep_from_children([&] {
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                     ends.data()) != 0)
      throw SystemError("spawn: could not make a pair of sockets", errno);
    return FileDescriptor(ends[0]);
  });
  FileDescriptor theirs(ends[1]);
  return {UnixConnection(above_standard(std::move(ours))),
          above_standard(std::move(theirs))};
}

FileDescriptor open_path(const char* path, int flags) {
  FileDescriptor opened(::open(path, flags | O_CLOEXEC));
  if (!opened)
    throw SystemError(fmt::format("spawn: could not open {}", path), errno);
  return above_standard(std::move(opened));
}

// A copy, or /dev/null where the program has closed the stream.
FileDescriptor copy_of_stream(int stream) {
  FileDescriptor copy(::fcntl(stream, F_DUPFD_CLOEXEC, 3));
  return copy ? std::move(copy) : open_path("/dev/null", O_RDWR);
}

[[noreturn]] void throw_ended() {
  throw NetworkError(
      "spawn: the process that prepare_spawn() has forked, or the one that "
      "watches the ranks, has ended\n"
      "  likely:  a signal has killed it, or the limit on processes is "
      "reached\n"
      "  next:    look for a signal or a lack of memory in the system's log, "
      "and start the program anew");
}

UnixConnection::Message receive(UnixConnection& job, Deadline deadline) {
  try {
    return job.receive(deadline);
  } catch (const NetworkError&) {
    throw_ended();
  } catch (const Timeout&) {
    throw Timeout(fmt::format(
        "spawn: the process that prepare_spawn() has forked does not answer "
        "for {} s\n  likely:  a signal has stopped it\n"
        "  next:    continue it (kill -CONT), or start the program anew",
        kStarts.count()));
  }
}

}  // namespace

SpawnServer::SpawnServer() {
  SocketPair pair = make_socket_pair();
  const FileDescriptor program = above_standard(open_own_process());
  // What is still in buffers would be printed by every rank.
  std::cout.flush();
  std::fflush(nullptr);
  // The server is not a child of the program, whose wait() would see it.
  const pid_t pid = ::fork();
  if (pid < 0) throw SystemError("prepare_spawn: could not fork", errno);
  if (pid == 0) start_server_process(pair.theirs.get(), program.get());
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) continue;
  connection_ = std::move(pair.ours);
}

UnixConnection SpawnServer::start(const SpawnRequest& request) {
  SocketPair pair = make_socket_pair();
  const FileDescriptor file = pack(request);
  const FileDescriptor output = copy_of_stream(STDOUT_FILENO);
  const FileDescriptor error = copy_of_stream(STDERR_FILENO);
  const FileDescriptor folder = open_path(".", O_PATH | O_DIRECTORY);
  const std::array<int, kJobDescriptors> descriptors{
      pair.theirs.get(), file.get(), output.get(), error.get(), folder.get()};
  const std::array<std::byte, 1> message{};
  const std::lock_guard lock(mutex_);
  try {
    connection_.send(message, descriptors, kStarts);
  } catch (const NetworkError&) {
    throw_ended();
  }
  return std::move(pair.ours);
}

std::optional<FailedRank> SpawnServer::run(const SpawnRequest& request) {
  std::fflush(nullptr);  // before the ranks' output
  UnixConnection job = start(request);
  receive(job, kStarts);
  const auto message = receive(job, Deadline::never());
  return read_answer(message.bytes);
}

}  // namespace lockstep::internal
