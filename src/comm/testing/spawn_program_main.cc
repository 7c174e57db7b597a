// A program that spawns ranks of itself, for spawn_test.cc.
//
// usage: lockstep_spawn_program prepared|anew CASE
//
// It prints what the ranks and the caller see, and exits with 0, or with 3
// after a RankFailure and 2 after another error.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/groups.h"
#include "lockstep/comm/spawn.h"

namespace lockstep {
namespace {

struct Pair {
  int whole;
  double real;
};

// Ranks share the output: each line is one write.
void say(const std::string& line) {
  const std::string whole = line + "\n";
  [[maybe_unused]] const auto written =
      ::write(STDOUT_FILENO, whole.data(), whole.size());
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "unset" : value;
}

int sum_of_ranks() {
  std::vector<int> data{default_group()->rank() + 1};
  default_group()->all_reduce(view(data), ReduceOp::kSum).wait();
  return data[0];
}

void reduce(int rank) {
  init_process_group();
  say(fmt::format("rank {}: sum {}", rank, sum_of_ranks()));
}

void print_arguments(int rank, const std::string& text,
                     std::vector<std::string> texts,
                     const std::vector<double>& numbers, Pair pair,
                     std::vector<bool> flags) {
  say(fmt::format("rank {}: {} {}+{} {} {} {} {}{}", rank, text, texts.at(0),
                  texts.at(1), numbers.size(), pair.whole, pair.real,
                  flags.at(0), flags.at(1)));
}

void print_environment(int rank) {
  std::string line = fmt::format("rank {}:", rank);
  for (const char* name :
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
        "OMP_NUM_THREADS", "SPAWN_TEST", "LOCKSTEP_SPAWN"})
    line += fmt::format(" {}={}", name, variable(name));
  say(line);
}

void print_sum(int rank, const std::vector<std::int64_t>& numbers) {
  std::int64_t sum = 0;
  for (const std::int64_t number : numbers) sum += number;
  say(fmt::format("rank {}: {} numbers, sum {}", rank, numbers.size(), sum));
}

// The other ranks lose their peer in an all_reduce.
void throw_at_one(int rank) {
  init_process_group();
  if (rank == 1) throw std::runtime_error("no such file: data");
  sum_of_ranks();
}

void end_by_signal(int rank) {
  init_process_group();
  if (rank == 1) ::raise(SIGKILL);
  sum_of_ranks();
}

void exit_with(int rank, int code) {
  if (rank == 1) std::exit(code);
  ::pause();
}

void throw_number(int) { throw 7; }

void throw_long(int) { throw std::runtime_error(std::string(1 << 20, 'x')); }

// Ends by SIGKILL only.
void ignore_sigterm(int rank) {
  std::signal(SIGTERM, SIG_IGN);
  init_process_group();
  sum_of_ranks();
  if (rank == 0) throw std::runtime_error("first");
  while (true) ::pause();
}

void stop_others(int rank) {
  init_process_group();
  sum_of_ranks();
  if (rank == 1) ::raise(SIGSTOP);
  throw std::runtime_error("rank 0 gives up");
}

void spawn_again(int) { spawn(print_environment, 2); }

// Its parent is the process that watches the ranks.
void kill_watcher(int) {
  ::kill(::getppid(), SIGKILL);
  while (true) ::pause();
}

// All ranks live when the program dies.
void kill_program(int rank, pid_t program) {
  init_process_group();
  sum_of_ranks();
  if (rank == 0) ::kill(program, SIGKILL);
  while (true) ::pause();
}

// The parent of the process that watches the ranks.
void kill_server(int) {
  std::ifstream file(fmt::format("/proc/{}/status", ::getppid()));
  pid_t server = 0;
  for (std::string word; server == 0 && file >> word;)
    if (word == "PPid:") file >> server;
  ::kill(server, SIGKILL);
}

void print_descriptors(int rank) {
  int open = 0;
  for (int number = 3; number < 256; ++number)
    open += ::fcntl(number, F_GETFD) >= 0;
  say(fmt::format("rank {} has {} descriptors", rank, open));
}

void return_at_once(int) {}

// Returns with collectives complete but a Work and the group still alive.
void keep_work(int rank) {
  init_process_group();
  static std::vector<int> data{rank};
  static Work kept = default_group()->all_reduce(view(data), ReduceOp::kSum);
  kept.wait();
  say(fmt::format("rank {}: kept {}", rank, data[0]));
}

void start_program(int rank) {
  if (rank == 0) say(fmt::format("sh: {}", std::system("exit 5") >> 8));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  int status = 1;
  ::waitpid(child, &status, 0);
  say(fmt::format("rank {}: child {}", rank, status));
}

void work_in_threads() {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([] { say("thread"); });
  for (std::thread& thread : threads) thread.join();
}

using Case = std::function<void()>;

// What a case does before prepare_spawn().
const std::map<std::string, Case>& preparations() {
  static const std::map<std::string, Case> all{
      {"living_thread",
       [] {
         std::thread([] {
           while (true) ::pause();
         }).detach();
       }},
      {"unflushed", [] { std::cout << "once" << std::endl
                                   << "twice?"; }},
      {"closed_streams",
       [] {
         ::close(STDIN_FILENO);
         ::close(STDERR_FILENO);
       }},
  };
  return all;
}

// All ranks return.
const std::map<std::string, Case>& successes() {
  static const std::map<std::string, Case> all{
      {"reduce", [] { spawn(reduce, 3); }},
      {"one", [] { spawn(reduce, 1); }},
      {"twice",
       [] {
         spawn(reduce, 2);
         spawn(print_environment, 1);
       }},
      {"arguments",
       [] {
         spawn(print_arguments, 2, "text", std::vector<std::string>{"a", ""},
               std::vector<double>(1000, 1.5), Pair{7, 0.5},
               std::vector<bool>{true, false});
       }},
      {"large",
       [] { spawn(print_sum, 2, std::vector<std::int64_t>(16 << 20, 3)); }},
      {"environment",
       [] {
         ::setenv("SPAWN_TEST", "set later", 1);
         spawn(print_environment, 2);
       }},
      {"threads_before",
       [] {
         work_in_threads();
         spawn(reduce, 2);
       }},
      {"living_thread", [] { spawn(reduce, 2); }},
      {"unflushed", [] { spawn(return_at_once, 3); }},
      {"closed_streams", [] { spawn(reduce, 2); }},
      {"keep_work", [] { spawn(keep_work, 3); }},
      {"start_program", [] { spawn(start_program, 2); }},
      {"children_ignored",
       [] {
         std::signal(SIGCHLD, SIG_IGN);
         spawn(reduce, 2);
       }},
      {"descriptors",
       [] {
         for (int i = 0; i < 8; ++i) ::dup(STDOUT_FILENO);
         spawn(print_descriptors, 2);
       }},
      {"time",
       [] {
         constexpr int kRanks = 8;
         const auto start = std::chrono::steady_clock::now();
         spawn(return_at_once, kRanks);
         const std::chrono::duration<double, std::milli> taken =
             std::chrono::steady_clock::now() - start;
         say(fmt::format("{:.2f} ms per rank", taken.count() / kRanks));
       }},

  };
  return all;
}

// Ranks fail, or spawn() refuses.
const std::map<std::string, Case>& failures() {
  static const std::map<std::string, Case> all{
      {"zero", [] { spawn(reduce, 0); }},
      {"negative", [] { spawn(reduce, -1); }},
      {"million", [] { spawn(reduce, 1'000'000); }},
      {"nested", [] { spawn(spawn_again, 1); }},
      {"throw", [] { spawn(throw_at_one, 4); }},
      {"throw_number", [] { spawn(throw_number, 1); }},
      {"throw_long", [] { spawn(throw_long, 1); }},
      {"signal", [] { spawn(end_by_signal, 3); }},
      {"exit", [] { spawn(exit_with, 3, 9); }},
      {"exit_0", [] { spawn(exit_with, 3, 0); }},
      {"ignore_sigterm",
       [] {
         spawn(ignore_sigterm,
               {.ranks = 3, .grace = std::chrono::milliseconds(50)});
       }},
      {"stopped", [] { spawn(stop_others, 2); }},
      {"after_failure",
       [] {
         try {
           spawn(throw_number, 2);
         } catch (const RankFailure&) {
           say("failed as expected");
         }
         spawn(print_environment, 1);
       }},
  };
  return all;
}

// Calls meet, or a process ends in between.
const std::map<std::string, Case>& attacks() {
  static const std::map<std::string, Case> all{
      {"two_at_once",
       [] {
         const auto call = [](int ranks) {
           try {
             spawn(reduce, ranks);
           } catch (const InvalidArgument& error) {
             say(std::string("InvalidArgument: ") + error.what());
           }
         };
         std::thread other(call, 2);
         call(3);
         other.join();
       }},
      {"kill_watcher", [] { spawn(kill_watcher, 1); }},
      {"kill_server",
       [] {
         spawn(kill_server, 1);
         say("the first returned");
         spawn(reduce, 2);
       }},
      {"kill_program", [] { spawn(kill_program, 2, ::getpid()); }},
      {"fork_first",
       [] {
         const pid_t child = ::fork();
         if (child == 0) {
           spawn(reduce, 2);
           std::exit(0);
         }
         int status = 0;
         ::waitpid(child, &status, 0);
         say(fmt::format("the child exited with {}", WEXITSTATUS(status)));
       }},
  };
  return all;
}

const Case& find_case(const std::string& name) {
  for (const auto* const table : {&successes(), &failures()})
    if (const auto found = table->find(name); found != table->end())
      return found->second;
  return attacks().at(name);
}

int run(const std::string& mode, const std::string& name) {
  if (const auto found = preparations().find(name);
      found != preparations().end())
    found->second();
  if (mode == "prepared") prepare_spawn();
  try {
    find_case(name)();
  } catch (const RankFailure& failure) {
    say(fmt::format("RankFailure of rank {}, code {}, signal {}: {}",
                    failure.rank(), failure.exit_code(), failure.signal(),
                    failure.what()));
    return 3;
  }
  say("spawn returned");
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  return lockstep::run(argv[1], argv[2]);
} catch (const lockstep::InvalidArgument& error) {
  lockstep::say(std::string("InvalidArgument: ") + error.what());
  return 2;
} catch (const std::exception& error) {
  lockstep::say(std::string("error: ") + error.what());
  return 2;
}
