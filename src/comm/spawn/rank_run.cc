#include "src/comm/spawn/rank_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "lockstep/comm/groups.h"
#include "src/base/environment.h"
#include "src/base/openmp_threads.h"
#include "src/base/process_environment.h"

namespace lockstep::internal {
namespace {

void set_environment(const std::vector<std::string>& variables) {
  for (const std::string& variable : variables) {
    const std::size_t end = variable.find('=');
    if (end == std::string::npos || end == 0) continue;
    ::setenv(variable.substr(0, end).c_str(), variable.c_str() + end + 1, 1);
  }
}

// An OpenMP that was loaded before the fork has read the environment already.
void limit_openmp() {
  try {
    const auto threads = read_integer(environment_variable, "OMP_NUM_THREADS",
                                      1, std::int64_t{1} << 16);
    if (threads) set_openmp_threads(static_cast<int>(*threads));
  } catch (const InvalidArgument&) {
    // OpenMP accepts more than one number, and judges the text itself.
  }
}

void send(const FileDescriptor& result, char kind, std::string_view message) {
  std::string record(1, kind);
  record += message.substr(0, kMaxRecordBytes - 1);
  std::string_view rest = record;
  while (!rest.empty()) {
    const ssize_t count = ::write(result.get(), rest.data(), rest.size());
    if (count < 0 && errno != EINTR) return;
    if (count > 0) rest.remove_prefix(static_cast<std::size_t>(count));
  }
}

void flush_output() {
  std::cout.flush();
  std::fflush(nullptr);
}

void call_function(const FileDescriptor& file, int rank, StartedAs started) {
  const SpawnRequest request = unpack(file);
  if (started == StartedAs::kForked) {
    ::clearenv();
    set_environment(request.environment);
    set_environment(rank_variables(rank));
    limit_openmp();
  }
  ArgumentReader arguments(request.call.arguments);
  request.call.entry(request.call.function, rank, arguments);
  destroy_process_group();
}

}  // namespace

[[noreturn]] void run_rank(const FileDescriptor& file, int rank,
                           const FileDescriptor& result, StartedAs started) {
  try {
    call_function(file, rank, started);
    flush_output();
    send(result, kReturned, "");
    if (started == StartedAs::kExecuted) std::exit(0);
    ::_exit(0);
  } catch (const PeerFailure& error) {
    send(result, kLostPeer, error.what());
  } catch (const std::exception& error) {
    send(result, kThrew, error.what());
  } catch (...) {
    send(result, kThrew, "an exception that is not a std::exception");
  }
  flush_output();
  ::_exit(1);
}

}  // namespace lockstep::internal
