// One rank that a fault happens to: `lockstep_fault_rank CASE`, started once a
// rank by lockstep_faults, which reads what it prints.
//
//   begun                        the group has formed, and work begins
//   calling N TIME               it makes call N of those that do not fit
//   worked on TIME               the store's death did not matter so far
//   error N TYPE RANK TIME       the Nth error that left a wait, and when, in
//   <message>                    nanoseconds of the monotonic clock; RANK is
//   end of error N               the culprit, or -1
//   kept, or touched             nobody wrote to its memory after the error
//   left nothing, or left …      what the destroyed group did not give back
//
// Exits with 10 after an error.
#include <cstdlib>
#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <string>

#include "fault_calls.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/comm/init.h"
#include "own_resources.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 60s;
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

// Runs `work` and says what error left it; false when there was none.
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

// Memory for as many operations as are in flight at once, half of it shared.
std::vector<CallMemory> make_memory(ProcessGroup& group) {
  std::vector<CallMemory> memory;
  for (std::size_t i = 0; i < kInFlight; ++i)
    memory.push_back(i % 2 == 0 ? CallMemory::shared(group)
                                : CallMemory::ordinary());
  return memory;
}

// Starts operations that all ranks choose alike, and waits for each when a
// third one after it has been started.
class Program {
 public:
  // All operations alike, or mostly those that write most to peers' memory.
  enum class Load { kMixed, kHeavy };

  Program(ProcessGroup& group, std::vector<CallMemory>& memory, unsigned seed,
          Load load = Load::kMixed)
      : group_(group), memory_(memory), random_(seed), load_(load) {}

  void step() {
    const std::size_t slot = steps_++ % kInFlight;
    for (Work& work : works_[slot]) work.wait();
    works_[slot].clear();
    works_[slot] = start_one(memory_[slot]);
    if (random_() % 3 == 0) finish();
  }

  void finish() {
    for (auto& works : works_) {
      for (Work& work : works) work.wait();
      works.clear();
    }
  }

 private:
  std::vector<Work> start_one(const CallMemory& memory) {
    const auto most = CallMemory::kElements / group_.size();
    const auto per_rank =
        std::min<std::int64_t>(std::int64_t{1} << random_() % 19, most);
    const int root =
        static_cast<int>(random_() % static_cast<unsigned>(group_.size()));
    const std::size_t choice = random_() % (kAllCalls.size() + 1);
    std::vector<Work> works;
    if (load_ == Load::kHeavy && random_() % 4 != 0)
      works.push_back(start_call(group_, Call::kAllReduce, memory, most, 0));
    else if (choice == kAllCalls.size())
      works = start_messages(group_, memory, per_rank);
    else
      works.push_back(
          start_call(group_, kAllCalls[choice], memory, per_rank, root));
    return works;
  }

  ProcessGroup& group_;
  std::vector<CallMemory>& memory_;
  std::mt19937 random_;
  const Load load_;
  std::size_t steps_ = 0;
  std::array<std::vector<Work>, kInFlight> works_;
};

unsigned seed() {
  return static_cast<unsigned>(std::stoul(text_from("SEED", "1")));
}

std::string held_since(const OwnResources& earlier) {
  const std::string more = OwnResources::count().more_than(earlier);
  return more.empty() ? "left nothing" : "left" + more;
}

// Works until something goes wrong.
int work() {
  const OwnResources earlier = OwnResources::count();
  {
    const auto group = join();
    auto memory = make_memory(*group);
    Program program(*group, memory, seed());
    group->barrier({.timeout = kPatience}).wait();
    say("begun");
    fails([&] {
      while (true) program.step();
    });
    destroy_process_group();
  }
  say(held_since(earlier));
  return kGotAnError;
}

// The same, and keeps an eye on its memory until the one who injected the fault
// has let the late rank go on.
int guard() {
  constexpr float kPattern = -12345;  // less than anything that is reduced
  const auto store = open_store(text_from("LOCKSTEP_STORE", ""),
                                {.token = text_from("LOCKSTEP_TOKEN", "")});
  const auto group = join();
  auto memory = make_memory(*group);
  Program program(*group, memory, seed(), Program::Load::kHeavy);
  group->barrier({.timeout = kPatience}).wait();
  say("begun");
  fails([&] {
    while (true) program.step();
  });
  for (CallMemory& part : memory) part.fill(kPattern);
  say("guarding");
  store->get("late rank went on", kPatience);
  std::int64_t touched = 0;
  for (const CallMemory& part : memory)
    touched += part.differing_from(kPattern);
  say(touched == 0 ? "kept" : "touched " + std::to_string(touched));
  return kGotAnError;
}

// Makes pairs of calls that do not fit, "2-7 0-3" (numbers in kAllCalls): one
// rank the second, the others the first. After each the ranks form anew.
int mismatch() {
  std::istringstream pairs(text_from("PAIRS", ""));
  const int odd = std::stoi(text_from("ODD", "0"));
  { const auto first = join(); }  // what the first group loads stays
  destroy_process_group();
  const OwnResources earlier = OwnResources::count();
  std::size_t first = 0;
  std::size_t second = 0;
  char dash = 0;
  for (int number = 0; pairs >> first >> dash >> second; ++number) {
    {
      const auto group = join();
      const CallMemory memory = CallMemory::shared(*group);
      group->barrier({.timeout = kPatience}).wait();
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

// Works on when the store has died, and notices where it needs the store.
int without_store() {
  const OwnResources earlier = OwnResources::count();
  {
    const auto group = join();
    auto memory = make_memory(*group);
    Program program(*group, memory, seed());
    group->barrier({.timeout = kPatience}).wait();
    say("begun");
    std::vector<int> everybody(static_cast<std::size_t>(group->size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    if (!fails([&] {
          for (int step = 0; step < 300; ++step) program.step();
          program.finish();
        }))
      say("worked on " + std::to_string(now()));
    fails([&] {
      while (true) new_group(*group, everybody);
    });
    destroy_process_group();
  }
  say(held_since(earlier));
  return kGotAnError;
}

// Is finding the others again when the store dies. (A rank that has never found
// it cannot tell a store that died from one that is still to come, and waits.)
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

// Puts the first half of the ranks on one host and the rest on another, as far
// as the backend "hybrid" is concerned.
void choose_host() {
  const int rank = std::stoi(text_from("RANK", "0"));
  const int size = std::stoi(text_from("WORLD_SIZE", "1"));
  ::setenv("LOCKSTEP_HOST_ID", rank < (size + 1) / 2 ? "a" : "b", 1);
}

int run(const std::string& name) {
  const std::map<std::string, int (*)()> cases{
      {"work", work},         {"guard", guard},
      {"mismatch", mismatch}, {"without_store", without_store},
      {"form", form},
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
