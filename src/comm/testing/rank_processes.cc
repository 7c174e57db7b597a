#include "src/comm/testing/rank_processes.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "lockstep/base/error.h"
#include "src/net/pipe.h"
#include "src/net/process_handle.h"
#include "src/net/wait.h"

extern char** environ;

namespace lockstep {
namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings)
    pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_for(
    int rank, int ranks, const std::string& store,
    const std::vector<std::string>& extra) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  const auto add = [&](const std::string& name, const std::string& value) {
    std::erase_if(variables, [&](const std::string& variable) {
      return variable.starts_with(name + "=");
    });
    variables.push_back(name + "=" + value);
  };
  for (const char* name : {"RANK", "LOCAL_RANK"})
    add(name, std::to_string(rank));
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"})
    add(name, std::to_string(ranks));
  add("LOCKSTEP_STORE", store);
  add("LOCKSTEP_TOKEN", RankProcesses::kToken);
  add("LOCKSTEP_PLUGIN_PATH", LOCKSTEP_TEST_PLUGINS);
  for (const std::string& variable : extra) {
    const std::size_t equals = variable.find('=');
    add(variable.substr(0, equals), variable.substr(equals + 1));
  }
  return variables;
}

}  // namespace

RankProcesses::RankProcesses(int ranks, const std::vector<std::string>& command,
                             const std::vector<std::string>& extra)
    : server_(std::make_unique<TcpStoreServer>("127.0.0.1", 0, kToken)),
      ranks_(static_cast<std::size_t>(ranks)) {
  for (int rank = 0; rank < ranks; ++rank) {
    start(rank, command, environment_for(rank, ranks, server_->url(), extra));
  }
}

RankProcesses::~RankProcesses() {
  for (Rank& rank : ranks_) {
    if (rank.pid < 0 || rank.reaped) continue;
    ::kill(rank.pid, SIGKILL);
    ::waitpid(rank.pid, nullptr, 0);
  }
}

void RankProcesses::start(int rank, const std::vector<std::string>& command,
                          const std::vector<std::string>& environment) {
  Pipe pipe = make_pipe();
  Rank& started = at(rank);
  started.pipe = std::move(pipe.read);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, pipe.write.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, pipe.write.get(), STDERR_FILENO);
  const int failed = ::posix_spawn(&started.pid, command[0].c_str(), &actions,
                                   nullptr, pointers_to(command).data(),
                                   pointers_to(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw SystemError("could not start " + command[0], failed);
  started.process = open_process(started.pid);
}

void RankProcesses::send_signal(int rank, int signal) {
  ::kill(at(rank).pid, signal);
}

// Returns false at the end of the output.
bool RankProcesses::read_more(Rank& rank, Deadline deadline) {
  pollfd item{rank.pipe.get(), POLLIN, 0};
  if (::poll(&item, 1, deadline.poll_milliseconds()) == 0)
    throw Timeout("a rank said nothing more; it had said:\n" + rank.output);
  std::array<char, 4096> bytes{};
  const ssize_t count = ::read(rank.pipe.get(), bytes.data(), bytes.size());
  if (count <= 0) return false;
  rank.output.append(bytes.data(), static_cast<std::size_t>(count));
  return true;
}

std::string RankProcesses::wait_for_line(int rank, const std::string& text,
                                         Deadline deadline) {
  Rank& waited = at(rank);
  while (true) {
    const std::size_t found = waited.output.find(text);
    const std::size_t end = waited.output.find('\n', found);
    if (found != std::string::npos && end != std::string::npos) {
      const std::size_t begin = waited.output.rfind('\n', found) + 1;
      return waited.output.substr(begin, end - begin);
    }
    if (!read_more(waited, deadline))
      throw Error("rank " + std::to_string(rank) + " ended without saying \"" +
                  text + "\"; it said:\n" + waited.output);
  }
}

bool RankProcesses::lives_until(int rank, Deadline moment) const {
  return wait_for(at(rank).process.get(), POLLIN, moment) ==
         WaitResult::kTimedOut;
}

int RankProcesses::wait_for_end(int rank, Deadline deadline) {
  Rank& waited = at(rank);
  while (read_more(waited, deadline)) {
  }
  pollfd item{waited.process.get(), POLLIN, 0};
  if (::poll(&item, 1, deadline.poll_milliseconds()) == 0)
    throw Timeout("rank " + std::to_string(rank) + " did not end");
  int status = 0;
  if (::waitpid(waited.pid, &status, 0) == waited.pid) waited.reaped = true;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace lockstep
