#include "src/comm/rendezvous/pmi_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/number_in.h"
#include "src/base/printable.h"
#include "src/net/parents_sockets.h"
#include "src/net/socket.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

// Far more than hydra sends: a value has at most 1024 bytes there.
constexpr std::size_t kMostLineBytes = std::size_t{1} << 16;

// The value of `name` in a line such as "cmd=get_result rc=0 value=abc".
std::optional<std::string_view> field(std::string_view line,
                                      std::string_view name) {
  while (!line.empty()) {
    const std::string_view word = line.substr(0, line.find(' '));
    line.remove_prefix(std::min(line.size(), word.size() + 1));
    const std::size_t equals = word.find('=');
    if (equals != std::string_view::npos && word.substr(0, equals) == name)
      return word.substr(equals + 1);
  }
  return std::nullopt;
}

std::size_t most_bytes(std::string_view line, std::string_view name) {
  return number_in<std::size_t>(field(line, name).value_or("")).value_or(0);
}

bool is_one_word(std::string_view text) {
  return text.find_first_of(" \n") == std::string_view::npos;
}

// 0 if the socket has no such option.
int option_of(int descriptor, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  if (::getsockopt(descriptor, SOL_SOCKET, name, &value, &size) != 0) return 0;
  return value;
}

// hydra makes a pair of Unix sockets and leaves one end to this process. Once
// that is closed, the number may be that of another connection.
bool is_hydras(int descriptor) {
  if (option_of(descriptor, SO_TYPE) != SOCK_STREAM ||
      option_of(descriptor, SO_DOMAIN) != AF_UNIX)
    return false;
  // The process that made the pair; 0 if it is in another pid namespace.
  ucred maker{};
  socklen_t size = sizeof maker;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &maker, &size) ==
             0 &&
         maker.pid != ::getpid();
}

FileDescriptor take(int descriptor) {
  if (!is_hydras(descriptor))
    throw NetworkError(fmt::format(
        "the descriptor {}, which PMI_FD names, is no connection to mpirun: "
        "MPI_Init or an earlier attempt of this process has used it, or a "
        "parent of this process has closed it",
        descriptor));
  FileDescriptor taken = keep_from_children([descriptor] {
    return FileDescriptor(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  });
  const FileDescriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!taken || !nothing || ::dup2(nothing.get(), descriptor) < 0)
    throw SystemError("could not take the connection to mpirun", errno);
  return taken;
}

}  // namespace

PmiClient::PmiClient(FileDescriptor socket, Deadline deadline)
    : socket_(std::move(socket)), deadline_(deadline) {}

// Delegates, so that the destructor keeps the connection open if this throws.
PmiClient::PmiClient(int descriptor, Deadline deadline)
    : PmiClient(take(descriptor), deadline) {
  ask("init", "pmi_version=1 pmi_subversion=1", "response_to_init");
  const std::string most = ask("get_maxes", "", "maxes");
  most_key_bytes_ = most_bytes(most, "keylen_max");
  most_value_bytes_ = most_bytes(most, "vallen_max");
  space_name_ =
      field(ask("get_my_kvsname", "", "my_kvsname"), "kvsname").value_or("");
}

PmiClient::~PmiClient() { socket_.release(); }

void PmiClient::put(std::string_view key, std::string_view value) {
  LOCKSTEP_CHECK(is_one_word(key) && is_one_word(value), "not one word");
  // The limits include the zero at the end of a text in C.
  if (key.size() >= most_key_bytes_ || value.size() >= most_value_bytes_)
    throw NetworkError(fmt::format(
        "PMI takes keys of less than {} and values of less than {} bytes; "
        "these have {} and {}",
        most_key_bytes_, most_value_bytes_, key.size(), value.size()));
  ask("put", fmt::format("kvsname={} key={} value={}", space_name_, key, value),
      "put_result");
}

void PmiClient::barrier() { ask("barrier_in", "", "barrier_out"); }

std::string PmiClient::get(std::string_view key) {
  const std::string answer = ask(
      "get", fmt::format("kvsname={} key={}", space_name_, key), "get_result");
  const auto value = field(answer, "value");
  if (!value)
    throw NetworkError(fmt::format("PMI gave no value for \"{}\"", key));
  return std::string(*value);
}

void PmiClient::finalize() {
  ask("finalize", "", "finalize_ack");
  socket_.reset();
}

std::string PmiClient::ask(std::string_view command, std::string_view arguments,
                           std::string_view expected) {
  send_line(command, fmt::format("cmd={}{}{}\n", command,
                                 arguments.empty() ? "" : " ", arguments));
  std::string answer = read_line(command);
  if (field(answer, "cmd") == expected &&
      field(answer, "rc").value_or("0") == "0")
    return answer;
  std::string shown = printable(answer);
  constexpr std::size_t kMostShown = 200;
  if (shown.size() > kMostShown) shown = shown.substr(0, kMostShown) + "...";
  throw NetworkError(
      fmt::format("PMI answered \"{}\" to \"cmd={}\"", shown, command));
}

void PmiClient::send_line(std::string_view command, std::string line) {
  std::span<const char> unsent(line);
  while (!unsent.empty()) {
    if (wait_for(socket_.get(), POLLOUT, deadline_) != WaitResult::kReady)
      throw Timeout(
          fmt::format("PMI did not read \"cmd={}\" in time", command));
    // The descriptor may block.
    const auto sent = ::send(socket_.get(), unsent.data(), unsent.size(),
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      unsent = unsent.subspan(static_cast<std::size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      throw PmiClosed(fmt::format(
          "mpirun closed the connection for PMI before \"cmd={}\"", command));
    }
  }
}

std::string PmiClient::read_line(std::string_view command) {
  std::array<std::byte, 1024> room;
  std::size_t end = unread_.find('\n');
  while (end == std::string::npos) {
    if (unread_.size() > kMostLineBytes)
      throw NetworkError(
          fmt::format("PMI's answer to \"cmd={}\" has more than {} bytes",
                      command, kMostLineBytes));
    if (wait_for(socket_.get(), POLLIN, deadline_) != WaitResult::kReady)
      throw Timeout(
          fmt::format("PMI did not answer \"cmd={}\" in time", command));
    const Transfer read = receive_some(socket_.get(), room);
    if (read.ended)
      throw PmiClosed(fmt::format(
          "mpirun closed the connection for PMI instead of an answer to "
          "\"cmd={}\"",
          command));
    unread_.append(reinterpret_cast<const char*>(room.data()), read.bytes);
    end = unread_.find('\n');
  }
  std::string line = unread_.substr(0, end);
  unread_.erase(0, end + 1);
  return line;
}

}  // namespace lockstep
