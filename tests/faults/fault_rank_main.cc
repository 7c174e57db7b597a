// One rank of a job with a fault: `lockstep_fault_rank CASE`.
// lockstep_fault_injection starts it once per rank and reads its output.
//
//   begun                        the group has formed, and work begins
//   calling N TIME               it makes call N of those that do not fit
//   worked on TIME               the store's death did not matter so far
//   error N TYPE RANK TIME       the Nth error that left a wait, and when, in
//   <message>                    nanoseconds of the monotonic clock; RANK is
//   end of error N               the culprit, or -1
//   checked N wrong M            the operations that ended without an error,
//                                and how many of them with wrong elements
//   freed N checked M wrong K    the same, at the end of round N
//   deadline TIME                when the wait that failed had to end
//   grown N                      MiB more of private memory than before
//   kept, or touched             whether peers wrote to its memory afterwards
//   left nothing, or left …      what the destroyed group did not give back
//
// Exits with 10 after an error.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <string>

#include "fault_calls.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/store/store.h"
#include "own_resources.h"
#include "src/base/settings.h"
#include "src/base/testing/test_timeout.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr int kGotAnError = 10;
constexpr std::size_t kInFlight = 3;

void say(const std::string& line) { std::cout << line << std::endl; }

std::string text_from(const char* variable, const std::string& otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : text;
}

std::int64_t now() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

std::shared_ptr<ProcessGroup> join() {
  return init_process_group(
      {.init_method = text_from("INIT_METHOD", "env://")});
}

void say_error(const std::string& type, int rank, const std::string& message) {
  static int count = 0;
  const std::string time = std::to_string(now());
  const std::string number = std::to_string(count++);
  say("error " + number + " " + type + " " + std::to_string(rank) + " " + time +
      "\n" + message + "\nend of error " + number);
}

// Runs `work` and prints the error that it throws; returns false without an
// error.
template <class Work>
bool fails(Work work) {
  try {
    work();
    return false;
  } catch (const PeerFailure& error) {
    say_error("PeerFailure", error.rank(), error.what());
  } catch (const Mismatch& error) {
    say_error("Mismatch", -1, error.what());
  } catch (const Timeout& error) {
    say_error("Timeout", -1, error.what());
  } catch (const NetworkError& error) {
    say_error("NetworkError", -1, error.what());
  } catch (const std::exception& error) {
    say_error("Error", -1, error.what());
  }
  return true;
}

// Memory for all concurrent operations, half of it shared.
std::vector<CallMemory> make_memory(
    ProcessGroup& group, std::int64_t elements = CallMemory::kElements) {
  std::vector<CallMemory> memory;
  for (std::size_t i = 0; i < kInFlight; ++i)
    memory.push_back(i % 2 == 0 ? CallMemory::shared(group, elements)
                                : CallMemory::ordinary(elements));
  return memory;
}

// Starts operations that all ranks choose alike, waits for each after the third
// later one has started, and checks its result.
class Program {
 public:
  // All operations alike, or mostly those that write most to peers' memory.
  enum class Load { kMixed, kHeavy };

  Program(ProcessGroup& group, std::vector<CallMemory>& memory, unsigned seed,
          Load load = Load::kMixed)
      : group_(group), memory_(memory), random_(seed), load_(load) {}

  void step() {
    const std::size_t slot = steps_++ % kInFlight;
    finish(slot);
    start_one(slot);
    if (random_() % 3 == 0) finish();
  }

  void finish() {
    for (std::size_t slot = 0; slot < kInFlight; ++slot) finish(slot);
  }

  // Prints the line that counts the completed operations.
  std::string results() const {
    return "checked " + std::to_string(checked_) + " wrong " +
           std::to_string(wrong_);
  }

 private:
  void finish(std::size_t slot) {
    std::vector<Work> works = std::move(works_[slot]);
    works_[slot].clear();
    if (works.empty()) return;
    for (Work& work : works) work.wait();
    ++checked_;
    const std::int64_t wrong = calls_[slot].count_wrong(memory_[slot]);
    if (wrong == 0) return;
    ++wrong_;
    say("wrong: " + std::to_string(wrong) + " elements of " +
        (calls_[slot].call ? std::string(name_of(*calls_[slot].call))
                           : "a message"));
  }

  void start_one(std::size_t slot) {
    const CallMemory& memory = memory_[slot];
    const auto most = memory.elements / group_.size();
    KnownCall& call = calls_[slot];
    call = {.rank = group_.rank(),
            .ranks = group_.size(),
            .root = static_cast<int>(random_() %
                                     static_cast<unsigned>(group_.size())),
            .per_rank =
                std::min<std::int64_t>(std::int64_t{1} << random_() % 19, most),
            .number = static_cast<unsigned>(steps_)};
    const std::size_t choice = random_() % (kAllCalls.size() + 1);
    if (choice < kAllCalls.size()) call.call = kAllCalls[choice];
    if (load_ == Load::kHeavy && random_() % 4 != 0) {
      constexpr std::array<std::optional<Call>, 4> kHeavy{
          Call::kAllReduce, Call::kAllReduce, Call::kBroadcast, std::nullopt};
      call.call = kHeavy[random_() % kHeavy.size()];
      call.per_rank = most;
    }
    call.fill(memory);
    if (call.call)
      works_[slot].push_back(
          start_call(group_, *call.call, memory, call.per_rank, call.root));
    else
      works_[slot] = start_messages(group_, memory, call.per_rank);
  }

  ProcessGroup& group_;
  std::vector<CallMemory>& memory_;
  std::mt19937 random_;
  const Load load_;
  std::size_t steps_ = 0;
  std::size_t checked_ = 0;
  std::size_t wrong_ = 0;
  std::array<KnownCall, kInFlight> calls_;
  std::array<std::vector<Work>, kInFlight> works_;
};

unsigned seed() {
  return static_cast<unsigned>(std::stoul(text_from("SEED", "1")));
}

std::string held_since(const OwnResources& earlier) {
  const std::string more = OwnResources::count().more_than(earlier);
  return more.empty() ? "left nothing" : "left" + more;
}

// Works until an error occurs.
int work() {
  const OwnResources earlier = OwnResources::count();
  {
    const auto group = join();
    auto memory = make_memory(*group);
    Program program(*group, memory, seed());
    group->barrier({.timeout = kTimeout}).wait();
    say("begun");
    fails([&] {
      while (true) program.step();
    });
    say(program.results());
    destroy_process_group();
  }
  say(held_since(earlier));
  return kGotAnError;
}

// The same, and watches its memory until the injecting test has resumed the
// late rank.
int guard() {
  constexpr float kPattern = -12345;  // less than every reduced value
  const auto store = open_store(text_from("LOCKSTEP_STORE", ""),
                                {.token = text_from("LOCKSTEP_TOKEN", "")});
  const auto group = join();
  auto memory = make_memory(*group);
  Program program(*group, memory, seed(), Program::Load::kHeavy);
  group->barrier({.timeout = kTimeout}).wait();
  say("begun");
  fails([&] {
    while (true) program.step();
  });
  for (CallMemory& part : memory) part.fill(kPattern);
  say(program.results());
  say("guarding");
  store->get("late rank went on", kTimeout);
  std::int64_t touched = 0;
  for (const CallMemory& part : memory)
    touched += part.differing_from(kPattern);
  say(touched == 0 ? "kept" : "touched " + std::to_string(touched));
  return kGotAnError;
}

// Works until an error occurs, changes and frees its memory at once, waits
// until its peers have done the same, and starts again.
int reuse() {
  constexpr float kPattern = -12345;
  constexpr std::int64_t kElements = std::int64_t{1} << 20;
  const auto store = open_store(text_from("LOCKSTEP_STORE", ""),
                                {.token = text_from("LOCKSTEP_TOKEN", "")});
  const int rounds = std::stoi(text_from("ROUNDS", "1"));
  for (int round = 0; round < rounds; ++round) {
    const std::string number = std::to_string(round);
    const auto group = join();
    auto memory = make_memory(*group, kElements);
    Program program(*group, memory, seed() + static_cast<unsigned>(round),
                    Program::Load::kHeavy);
    group->barrier({.timeout = kTimeout}).wait();
    say("begun " + number);
    fails([&] {
      while (true) program.step();
    });
    for (const CallMemory& part : memory) part.fill(kPattern);
    memory.clear();
    say("freed " + number + " " + program.results());
    store->get("round " + number + " is over", kTimeout);
    destroy_process_group();
  }
  return kGotAnError;
}

// The private memory of this process, in MiB.
std::int64_t private_mebibytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) >> 10;
  return 0;
}

// Works while rank 0 uses a lot of memory.
int laden() {
  constexpr std::int64_t kElements = std::int64_t{1} << 22;
  const auto bytes = std::stoull(text_from("LADEN_BYTES", "0"));
  const auto timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(
      Settings::from_environment().timeout);
  const auto group = join();
  const auto load = group->allocate(group->rank() == 0 ? bytes : 1);
  const CallMemory memory = CallMemory::shared(*group, kElements);
  memory.fill(1);
  group->barrier({.timeout = kTimeout}).wait();
  const std::int64_t before = private_mebibytes();
  say("begun");
  std::int64_t deadline = 0;
  fails([&] {
    while (true) {
      deadline = now() + timeout.count();
      start_call(*group, Call::kAllReduce, memory, kElements / group->size(), 0)
          .wait();
    }
  });
  say("deadline " + std::to_string(deadline));
  say("grown " + std::to_string(private_mebibytes() - before));
  return kGotAnError;
}

// Makes pairs of mismatched calls, "2-7 0-3" (numbers in kAllCalls): one rank
// the second, the others the first. After each pair the ranks form a new group.
int mismatch() {
  std::istringstream pairs(text_from("PAIRS", ""));
  const int odd = std::stoi(text_from("ODD", "0"));
  { const auto first = join(); }  // libraries of the first group stay loaded
  destroy_process_group();
  const OwnResources earlier = OwnResources::count();
  std::size_t first = 0;
  std::size_t second = 0;
  char dash = 0;
  for (int number = 0; pairs >> first >> dash >> second; ++number) {
    {
      const auto group = join();
      const CallMemory memory = CallMemory::shared(*group);
      group->barrier({.timeout = kTimeout}).wait();
      const bool is_odd = group->rank() == (odd + number) % group->size();
      say("calling " + std::to_string(number) + " " + std::to_string(now()));
      fails([&] {
        start_call(*group, kAllCalls.at(is_odd ? second : first), memory, 1000,
                   0)
            .wait();
      });
      destroy_process_group();
    }
    say(held_since(earlier));
  }
  return kGotAnError;
}

// Continues after the store's death, and gets an error when it needs the store.
int without_store() {
  const OwnResources earlier = OwnResources::count();
  {
    const auto group = join();
    auto memory = make_memory(*group);
    Program program(*group, memory, seed());
    group->barrier({.timeout = kTimeout}).wait();
    say("begun");
    std::vector<int> everybody(static_cast<std::size_t>(group->size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    if (!fails([&] {
          for (int step = 0; step < 300; ++step) program.step();
          program.finish();
        }))
      say("worked on " + std::to_string(now()));
    say(program.results());
    fails([&] {
      while (true) new_group(*group, everybody);
    });
    destroy_process_group();
  }
  say(held_since(earlier));
  return kGotAnError;
}

// Is in a second rendezvous when the store dies. (A rank that has never reached
// the store cannot distinguish a dead store from one that is still to start,
// and waits.)
int form() {
  join()->barrier().wait();
  destroy_process_group();
  say("begun");
  fails([&] {
    while (true) {
      join()->barrier().wait();
      destroy_process_group();
    }
  });
  return kGotAnError;
}

// For the backend "hybrid", puts the first half of the ranks on one host and
// the rest on another.
void choose_host() {
  const int rank = std::stoi(text_from("RANK", "0"));
  const int size = std::stoi(text_from("WORLD_SIZE", "1"));
  ::setenv("LOCKSTEP_HOST_ID", rank < (size + 1) / 2 ? "a" : "b", 1);
}

int run(const std::string& name) {
  const std::map<std::string, int (*)()> cases{
      {"work", work},         {"guard", guard},
      {"mismatch", mismatch}, {"without_store", without_store},
      {"form", form},         {"reuse", reuse},
      {"laden", laden},
  };
  const auto found = cases.find(name);
  if (found != cases.end()) return found->second();
  say("unknown case " + name);
  return 2;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    lockstep::choose_host();
    return lockstep::run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::cout << "failed: " << error.what() << std::endl;
    return 1;
  }
}
