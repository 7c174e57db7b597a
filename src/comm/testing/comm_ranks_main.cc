// One rank of a test, as a process: `lockstep_comm_ranks CASE`, started once
// per rank with a launcher's environment. process_fault_test.cc starts it;
// `lockstep run` can too.
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <latch>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/comm/training_loop.h"
#include "src/base/testing/address_space.h"
#include "src/base/testing/own_resources.h"
#include "src/comm/group/group_core.h"
#include "src/comm/group/registry.h"
#include "src/comm/nccl/gpu_plugin.h"
#include "src/comm/rendezvous/rendezvous.h"
#include "src/comm/rendezvous/world.h"
#include "src/comm/testing/conformance_rank.h"
#include "src/comm/testing/run_ranks.h"
#include "src/net/shared_memory.h"
#include "src/net/testing/scarce_descriptors.h"
#include "src/net/testing/without_pidfd.h"
#include "src/store/record_request.h"

namespace {

// How many allocations of this thread come before the one that fails; negative:
// none fails.
thread_local int allocations_left = -1;

}  // namespace

void* operator new(std::size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
// The address sanitizer compares how memory came and went.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes > 0 ? bytes : 1);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace lockstep {
namespace {

// Lets an allocation of this thread fail while it lives.
class FailingAllocation {
 public:
  explicit FailingAllocation(int nth) { allocations_left = nth; }
  ~FailingAllocation() { allocations_left = -1; }
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;
};

// More than an operation of 64 buffers needs.
constexpr int kMostAllocations = 20;

void say(const std::string& line) { std::cout << line << std::endl; }

int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

// The default group, by the init method that INIT_METHOD names.
std::shared_ptr<ProcessGroup> join() {
  const char* method = std::getenv("INIT_METHOD");
  return init_process_group({.init_method = method ? method : "env://"});
}

int run_cases(const std::shared_ptr<ProcessGroup>& group,
              const std::vector<ConformanceCase>& cases, const Gpu* gpu) {
  const auto seed = static_cast<std::uint64_t>(number_from("SEED", 1));
  int wrong = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string error =
        run_conformance_case(*group, cases[i], seed + i, gpu);
    if (error.empty()) continue;
    say(error);
    ++wrong;
  }
  say(std::to_string(cases.size()) + " cases, " + std::to_string(wrong) +
      " wrong");
  group->barrier().wait();
  return wrong == 0 && !cases.empty() ? 0 : 1;
}

// Runs the conformance suite's cases of this world size. On several hosts the
// first half of the ranks is on the first one.
int conformance() {
  const auto group = join();
  std::vector<ConformanceCase> cases = chosen_cases(group->size());
  if (group->backend() == "hybrid")
    for (ConformanceCase& c : cases)
      c.first_host = ranks_of_first_host(group->size());
  return run_cases(group, cases, nullptr);
}

// The same in GPU memory, with the plug-in: 1, 2 or 4 ranks, which may share
// GPUs (LOCKSTEP_SHARE_GPUS).
int conformance_on_gpus() {
  const auto group = join();
  const Settings settings = Settings::from_environment();
  const LockstepGpuTable& table = load_gpu_table(settings);
  const Gpu gpu(table, settings.gpu_of_rank([&] { return Gpu::count(table); }));
  return run_cases(group, cases_on_gpus(group->size(), Elements::kExact), &gpu);
}

std::uint64_t heap_bytes() {
  return static_cast<std::uint64_t>(Settings::from_environment().heap_bytes);
}

bool limit(__rlimit_resource resource, rlim_t most) {
  const rlimit limits{most, most};
  return ::setrlimit(resource, &limits) == 0;
}

// The same when rank 1 has no address space for a second heap.
int conformance_without_room() {
  if (number_from("RANK", 0) == 1 &&
      !limit_address_space(heap_bytes() + heap_bytes() / 2))
    return 1;
  return conformance();
}

// The same when LIMIT, "as" or "fsize", admits half a heap, on all ranks or
// only on LIMITED_RANK. The limit is set before the heap is made.
int conformance_without_a_heap() {
  const int rank = number_from("RANK", 0);
  const bool limited = number_from("LIMITED_RANK", rank) == rank;
  const std::string what = std::getenv("LIMIT");
  if (limited && !(what == "as" ? limit_address_space(heap_bytes() / 2)
                                : limit(RLIMIT_FSIZE, heap_bytes() / 2)))
    return 1;
  const int code = conformance();
  const bool has_heap = default_group()->core().heap() != nullptr;
  say(has_heap ? "with a heap" : "without a heap");
  return has_heap == limited ? 1 : code;
}

// Rank 0 forks a child, which exits normally.
int forked_child() {
  // Only the library holds the group, which has its own threads.
  join();
  for (int turn = 0; turn < 100; ++turn) default_group()->barrier().wait();
  if (default_group()->rank() == 0) {
    const pid_t child = ::fork();
    if (child == 0) std::exit(0);
    int status = 0;
    if (::waitpid(child, &status, 0) != child || status != 0) return 1;
  }
  default_group()->barrier().wait();
  say("all are still here");
  return 0;
}

// Works until a rank is asked to stop; prints the step after which it ended.
int work_until_asked_to_stop() {
  const auto group = join();
  StopRequest stop(group);
  std::int64_t step = 1;
  say("works");
  for (; !stop.agreed(); ++step) group->barrier().wait();
  say("stopped after step " + std::to_string(step));
  return StopRequest::kStartAgain;
}

// Drops a sub-group with a receive that gets no message.
int unmatched_receive() {
  const auto group = join();
  std::vector<int> all(static_cast<std::size_t>(group->size()));
  std::iota(all.begin(), all.end(), 0);
  {
    const auto part = new_group(*group, all);
    part->barrier().wait();
    std::vector<float> never(10);
    if (part->rank() == 0) std::ignore = part->irecv(view(never), 1, 7);
  }
  const auto block = group->allocate(sizeof(float) << 20);
  const Buffer data{block.get(), 1 << 20, DataType::kFloat32};
  for (int turn = 0; turn < 20; ++turn) {
    auto* const floats = reinterpret_cast<float*>(block.get());
    std::fill_n(floats, 1 << 20, 1.0f);
    group->all_reduce(data, ReduceOp::kSum).wait();
    if (std::count(floats, floats + (1 << 20),
                   static_cast<float>(group->size())) != 1 << 20)
      return 1;
  }
  say("the group works on");
  return 0;
}

// Opens the job's store again.
std::shared_ptr<Store> open_job_store() {
  const Settings settings = Settings::from_environment();
  return open_store(settings.store.value(), {.token = settings.token});
}

// Whether `call` throws InvalidArgument.
bool refuses(const std::function<void()>& call) {
  try {
    call();
    return false;
  } catch (const InvalidArgument&) {
    return true;
  }
}

// Whether a forked child may neither wait for `work` nor ask about it.
bool refuses_the_child(const Work& work) {
  return refuses([&] { work.wait(); }) &&
         refuses([&] { work.synchronize(); }) &&
         refuses([&] { work.order_before(nullptr); }) &&
         refuses([&] { std::ignore = work.done(); }) &&
         refuses([&] { std::ignore = work.missing(); }) &&
         refuses([&] { std::ignore = work.source_rank(); }) &&
         refuses([&] { wait_for_all(std::span(&work, 1)); });
}

// The same with objects that are destroyed at process exit: a group, pending
// works, a store that this process serves. The child calls the group, waits for
// the works, and uses the store.
int forked_child_with_static_objects() {
  using std::chrono::minutes;
  static std::shared_ptr<ProcessGroup> group;
  static std::shared_ptr<Store> served;
  static std::vector<float> never(1), sum(1, 1);
  static Work work, summing;
  const auto world = join();
  group = new_group(*world, std::vector<int>{0, 1});
  served = open_store("tcp://127.0.0.1:0", {.serve = true});
  served->set("kept", to_bytes("yes"), minutes(1));
  work = group->irecv(view(never), 1 - world->rank(), 5);
  for (int turn = 0; turn < 100; ++turn) group->barrier().wait();
  const auto store = open_job_store();
  // The other rank comes when the child has ended. (`reference` completes a
  // collective while it starts it.)
  const bool early = world->rank() == 0 && group->backend() != "reference";
  const auto add_up = [] {
    summing = group->all_reduce(view(sum), ReduceOp::kSum);
  };
  if (early) add_up();
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<float> own(1, 7);
    const bool refused =
        refuses_the_child(work) && (!early || refuses_the_child(summing)) &&
        refuses([&] { served->set("kept", to_bytes("no"), minutes(1)); }) &&
        refuses([&] { store->get("never", minutes(1)); }) &&
        refuses([] { std::ignore = group->barrier(); }) && refuses([&] {
          std::ignore = group->isend(view(own), 1 - group->rank(), 5);
        }) &&
        refuses([] { group->core().duplicate(); }) &&
        refuses([] { monitored_barrier(*group, minutes(1)); });
    destroy_process_group();
    std::exit(refused ? 0 : 1);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || status != 0) return 1;
  store->set("forked/" + std::to_string(world->rank()), {}, minutes(1));
  store->get("forked/0", minutes(1));
  if (!early) add_up();
  summing.wait();
  if (sum[0] != 2) return 1;
  group->barrier().wait();
  world->barrier().wait();
  if (to_text(served->get("kept", minutes(1))) != "yes") return 1;
  const std::int64_t question = ask(*store, world->rank(), minutes(1));
  store->get(answer_key(world->rank(), question), minutes(1));
  say("all are still here, and the watchdog answers");
  std::vector<float> one(1, 1);
  const Work sent = group->isend(view(one), 1 - world->rank(), 5);
  sent.wait();
  work.wait();
  group->barrier().wait();
  return never == one ? 0 : 1;
}

// Rank VICTIM ends and leaves a child, which lives until the others have
// noticed the end.
int die_with_a_child() {
  using std::chrono::minutes;
  const auto group = join();
  group->barrier().wait();
  const std::string noticed = "noticed";
  if (group->rank() == number_from("VICTIM", 1)) {
    const int port = number_from("SIGNAL_PORT", 0);
    if (::fork() == 0) {
      ::close(STDOUT_FILENO);
      ::close(STDERR_FILENO);
      const std::string url = "tcp://127.0.0.1:" + std::to_string(port);
      open_store(url)->get(noticed, minutes(2));
      ::_exit(0);
    }
    ::raise(SIGKILL);
  }
  group->barrier().wait();
  return 0;
}

// Rank VICTIM never calls the all_reduce that the others wait in.
int held_before_all_reduce() {
  const auto group = join();
  group->barrier().wait();
  if (group->rank() == number_from("VICTIM", 1)) {
    say("holding");
    while (true) ::pause();
  }
  std::vector<float> data(static_cast<std::size_t>(number_from("COUNT", 1)), 1);
  const Work work = group->all_reduce(view(data), ReduceOp::kSum);
  say("published");
  work.wait();
  return 0;
}

// Repeats all-reduces of changing sizes in heap and ordinary memory for ever.
int all_reduce_for_ever() {
  const auto group = join();
  std::mt19937 random(static_cast<unsigned>(number_from("SEED", 1)));
  group->barrier().wait();
  say("begun");
  const auto block = group->allocate(std::size_t{1} << 22);
  std::vector<float> ordinary(1 << 19);
  while (true) {
    const auto count = static_cast<std::int64_t>(1 + random() % (1 << 19));
    Buffer buffer = view(ordinary);
    if (random() % 2 == 0) buffer.data = block.get();
    buffer.count = count;
    group->all_reduce(buffer, ReduceOp::kSum).wait();
  }
}

// Rank 1 makes another call than the others.
int mismatch() {
  const auto group = join();
  std::vector<float> data(10);
  if (group->rank() == 1) data.resize(11);
  group->all_reduce(view(data), ReduceOp::kSum).wait();
  return 0;
}

// Rank VICTIM leaves, or dies, instead of making the others' call.
int leave_early() {
  join()->barrier().wait();
  if (default_group()->rank() == number_from("VICTIM", 1))
    destroy_process_group();
  else
    default_group()->barrier().wait();
  return 0;
}

// With HOSTS, so many ranks are on each host.
void divide_among_hosts() {
  const std::string host =
      std::to_string(number_from("RANK", 0) / number_from("HOSTS", 1));
  if (std::getenv("HOSTS") != nullptr)
    ::setenv("LOCKSTEP_HOST_ID", host.c_str(), 1);
}

// While all ranks but LATE wait in a collective, rank VICTIM dies or, with
// LEAVES, leaves. LATE comes once the others have noticed that. With HOSTS,
// so many ranks are on each host.
int be_late_while_one_is_gone() {
  using std::chrono::minutes;
  divide_among_hosts();
  const auto group = join();
  const int rank = group->rank();
  const auto store = group->core().world()->store();
  const int late = number_from("LATE", 0), victim = number_from("VICTIM", 1);
  const auto await_others = [&](const std::string& what) {
    for (int other = 0; other < group->size(); ++other)
      if (other != late && other != victim)
        store->get(what + std::to_string(other), minutes(2));
  };
  group->barrier().wait();
  if (rank == victim) {
    await_others("waits/");
    if (std::getenv("LEAVES") == nullptr) ::raise(SIGKILL);
    group->leave();
    await_others("noticed/");
    return 0;
  }
  if (rank == late) await_others("noticed/");
  std::vector<float> data(static_cast<std::size_t>(number_from("COUNT", 1)), 1);
  const Work work = group->all_reduce(view(data), ReduceOp::kSum);
  store->set("waits/" + std::to_string(rank), {}, minutes(2));
  try {
    work.wait();
  } catch (const Error&) {
    store->set("noticed/" + std::to_string(rank), {}, minutes(2));
    throw;
  }
  return 0;
}

int die() {
  const auto group = join();
  group->barrier().wait();
  if (group->rank() == number_from("VICTIM", 1)) {
    // Returns from main(), which leaves the group first.
    if (const int code = number_from("EXIT_CODE", 0)) return code;
    ::raise(SIGKILL);
  }
  group->barrier().wait();
  return 0;
}

// Rank VICTIM ends when the others have begun to make a group of all ranks.
int die_while_a_group_forms() {
  // With HOSTS, even and odd ranks are on different hosts.
  if (std::getenv("HOSTS") != nullptr)
    ::setenv("LOCKSTEP_HOST_ID", number_from("RANK", 0) % 2 ? "b" : "a", 1);
  const auto world = join();
  world->barrier().wait();
  if (world->rank() == number_from("VICTIM", 1)) {
    world->core().world()->store()->wait_any(std::vector<std::string>{"waits"},
                                             std::chrono::minutes(2));
    ::raise(SIGKILL);
  }
  std::vector<int> ranks(static_cast<std::size_t>(world->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  world->core().world()->store()->set("waits", {}, std::chrono::minutes(2));
  new_group(*world, ranks);
  return 0;
}

// Rank VICTIM ends after all ranks have met, before the default group is made.
int die_before_the_default_group() {
  if (number_from("RANK", 0) != number_from("VICTIM", 1)) {
    join();
    return 0;
  }
  const Settings settings = Settings::from_environment();
  const Rendezvous seat(open_job_store(),
                        {.rank = number_from("RANK", 0),
                         .world_size = number_from("WORLD_SIZE", 0),
                         .job = settings.job,
                         .has_token = true,
                         .settings = settings_of_job("auto", settings)},
                        std::chrono::minutes(2));
  return ::raise(SIGKILL);
}

// Some ranks make groups before other ranks make theirs, and all make one group
// after different numbers of groups.
int groups_in_different_orders() {
  const auto world = join();
  const bool low = world->rank() < 2;
  std::vector<std::vector<int>> own{{0, 1}, {1, 0}, {0, 1}};
  if (!low) own = {{3, 2}};
  own.push_back({0, 1, 2, 3});
  int sum = 0;
  for (const std::vector<int>& ranks : own) {
    const auto group = new_group(*world, ranks);
    std::vector<int> values(20000, world->rank());  // more than fits a packet
    group->all_reduce(view(values), ReduceOp::kSum).wait();
    sum = values.back();
    if (ranks.size() == 2 && sum != (low ? 1 : 5)) return 1;
  }
  say("the sum of all is " + std::to_string(sum));
  return 0;
}

// Rank 1 is stopped while it sends a long message to rank 0, which gives up,
// reuses the memory, and lets rank 1 continue.
int stopped_sender() {
  const auto world = join();
  const std::vector<int> both{0, 1};
  const auto group = new_group(*world, both);
  std::vector<pid_t> pids(2);
  const std::vector<pid_t> own{::getpid()};
  world->all_gather(view(own), view(pids)).wait();
  std::vector<float> values(1 << 24, 1);
  if (world->rank() == 1) {
    const Work work = group->isend(view(values), 0);
    ::raise(SIGSTOP);
    try {
      work.wait();
    } catch (const Error&) {
      say("heard of it");
    }
    world->barrier().wait();
    return 0;
  }
  try {
    group->recv(view(values), 1, 0, {.timeout = std::chrono::seconds(1)});
    say("everything came");
  } catch (const Error&) {
    say("gave up");
  }
  std::ranges::fill(values, 7.0f);
  ::kill(pids[1], SIGCONT);
  world->barrier().wait();
  const auto touched =
      std::ranges::count_if(values, [](float value) { return value != 7.0f; });
  say(std::to_string(touched) + " elements touched");
  return 0;
}

// Two ranks of a group in this process, which some backends do not support.
int ranks_as_threads() {
  const auto store = open_store("memory:");
  const auto world =
      std::make_shared<World>(store, Settings::from_environment());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      try {
        make_group("auto", {.rank = rank, .size = 2}, world)->barrier().wait();
      } catch (const InvalidArgument& error) {
        say(std::string("refused: ") + error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  return 0;
}

// Makes COUNT groups, one after the other, and uses each once. After half of
// them all lazily made objects exist.
int many_groups() {
  const auto world = join();
  const int count = number_from("COUNT", 2);
  std::vector<int> ranks(static_cast<std::size_t>(world->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::size_t descriptors = 0;
  std::size_t threads = 0;
  for (int turn = 0; turn < count; ++turn) {
    new_group(*world, ranks)->barrier().wait();
    if (turn != count / 2) continue;
    descriptors = count_descriptors();
    threads = count_threads();
  }
  say("more descriptors: " + std::to_string(count_descriptors() - descriptors) +
      ", more threads: " + std::to_string(count_threads() - threads));
  return 0;
}

int barrier() {
  join()->barrier().wait();
  return 0;
}

// Each rank ends at once, without a farewell, when it has passed.
int monitored_barrier_and_end() {
  monitored_barrier(*join(), std::chrono::minutes(1));
  ::_exit(0);
}

// Rank 0 broadcasts more than the others can have read when it leaves.
int broadcast_and_leave() {
  const auto group = join();
  std::vector<float> values(8 << 20, group->rank() == 0 ? 7.0f : 0.0f);
  group->broadcast(view(values), 0).wait();
  destroy_process_group();
  if (std::ranges::count(values, 7.0f) != std::ssize(values)) return 1;
  say("has all");
  return 0;
}

// Rank 1 dies while rank 0 only polls a message from it.
int poll_a_message() {
  const auto group = join();
  group->barrier().wait();
  if (group->rank() == 1) ::raise(SIGKILL);
  std::vector<float> values(100);
  const Work receive = group->irecv(view(values), 1);
  while (!receive.done()) std::this_thread::yield();
  receive.wait();
  return 0;
}

// Rank 1 sends memory that no process may read.
int send_what_cannot_be_read() {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const auto group = join();
  group->barrier().wait();
  void* const memory =
      ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const Buffer bad{memory, kBytes, DataType::kUInt8};
  std::vector<std::byte> good(kBytes);
  if (group->rank() == 1)
    group->send(bad, 0);
  else
    group->recv(view_bytes(good), 1);
  return 0;
}

// Rank 0 receives from any source while rank 1 dies or, with LEAVES, leaves;
// then rank 2 sends.
int receive_from_any_while_one_ends() {
  using std::chrono::minutes;
  divide_among_hosts();
  const auto group = join();
  const auto store = open_job_store();
  group->barrier().wait();
  std::vector<float> values(3, static_cast<float>(group->rank()));
  if (group->rank() == 0) {
    const Work receive = group->irecv(view(values), kAnySource);
    store->set("waits", {}, minutes(2));
    receive.wait();
    return values[0] == 2 ? 0 : 1;
  }
  store->get("waits", minutes(2));
  if (group->rank() == 1) {
    if (std::getenv("LEAVES") == nullptr) ::raise(SIGKILL);
    destroy_process_group();
    store->set("left", {}, minutes(2));
    return 0;
  }
  store->get("left", minutes(2));
  group->send(view(values), 0);
  return 0;
}

// One allocation after another fails while rank 0 starts a receive.
int failing_allocations_of_messages() {
  const auto world = join();
  for (int nth = 0; nth < kMostAllocations; ++nth) {
    const std::vector<int> both{0, 1};
    const auto group = new_group(*world, both);
    std::vector<float> values(100'000, world->rank() == 0 ? 0.0F : 5.0F);
    float expected = 5;
    try {
      Work work;
      if (world->rank() == 0) {
        const FailingAllocation failing(nth);
        work = group->irecv(view(values), 1);
      } else {
        work = group->isend(view(values), 0);
      }
      work.wait(std::chrono::seconds(1));
    } catch (const std::exception&) {
      if (world->rank() == 0) expected = 7;
      std::ranges::fill(values, expected);
    }
    try {
      group->barrier({.timeout = std::chrono::seconds(20)}).wait();
    } catch (const std::exception&) {
    }
    world->barrier().wait();
    if (std::ranges::count(values, expected) != std::ssize(values)) {
      say("without allocation " + std::to_string(nth) + " the first element " +
          "was " + std::to_string(values.front()));
      return 1;
    }
  }
  return 0;
}

// One allocation after another fails while rank 0 starts an operation.
int failing_allocations() {
  const auto world = join();
  const bool fails = world->rank() == 0;
  for (int nth = 0; nth < kMostAllocations; ++nth) {
    const std::vector<int> both{0, 1};
    const auto group = new_group(*world, both);
    std::vector<std::vector<float>> lists(64, std::vector<float>(100, 1));
    std::vector<Buffer> buffers;
    for (auto& list : lists) buffers.push_back(view(list));
    float expected = 2;
    try {
      const FailingAllocation failing(fails ? nth : -1);
      group
          ->all_reduce(buffers, ReduceOp::kSum,
                       {.timeout = std::chrono::seconds(20)})
          .wait();
    } catch (const std::exception&) {
      expected = 7;  // no thread may write to memory that the caller reuses
      for (auto& list : lists) std::ranges::fill(list, expected);
    }
    try {
      group->barrier({.timeout = std::chrono::seconds(20)}).wait();
    } catch (const std::exception&) {
    }
    world->barrier().wait();
    for (const auto& list : lists)
      if (std::ranges::count(list, expected) != std::ssize(list)) {
        say("without allocation " + std::to_string(nth) + " an element was " +
            std::to_string(list.front()) + " instead of " +
            std::to_string(expected));
        return 1;
      }
  }
  say("no allocation too many");
  return 0;
}

// Rank VICTIM may open SPARE more files; with SOFT=1 only its soft limit says
// so.
int short_of_descriptors() {
  std::optional<ScarceDescriptors> scarce;
  if (number_from("RANK", 0) == number_from("VICTIM", 1)) {
    scarce.emplace(number_from("SPARE", 0));
    rlimit now{};
    ::getrlimit(RLIMIT_NOFILE, &now);
    if (number_from("SOFT", 0) == 0 && !limit(RLIMIT_NOFILE, now.rlim_cur))
      return 1;
  }
  join()->barrier().wait();
  say("met");
  return 0;
}

// Makes two default groups, one after the other.
int join_twice() {
  for (int turn = 0; turn < 2; ++turn) {
    const auto group = join();
    group->barrier().wait();
    destroy_process_group();
  }
  say("joined twice");
  return 0;
}

// Two threads write the same byte of shared memory without ordering, each
// through its own mapping.
int planted_race() {
  const FileDescriptor memory = create_shared_memory("race", 4096);
  std::latch both_mapped(2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      const auto mapping = map_shared_memory(memory);
      both_mapped.arrive_and_wait();
      volatile std::byte* byte = mapping->data();
      for (int turn = 0; turn < 1000; ++turn)
        *byte = static_cast<std::byte>(i + turn);
    });
  for (std::thread& thread : threads) thread.join();
  return 0;
}

const std::map<std::string, std::function<int()>>& cases() {
  static const std::map<std::string, std::function<int()>> all{
      {"conformance", conformance},
      {"conformance_on_gpus", conformance_on_gpus},
      {"conformance_without_room", conformance_without_room},
      {"conformance_without_a_heap", conformance_without_a_heap},
      {"forked_child", forked_child},
      {"forked_child_with_static_objects", forked_child_with_static_objects},
      {"die_with_a_child", die_with_a_child},
      {"held_before_all_reduce", held_before_all_reduce},
      {"work_until_asked_to_stop", work_until_asked_to_stop},
      {"unmatched_receive", unmatched_receive},
      {"all_reduce_for_ever", all_reduce_for_ever},
      {"mismatch", mismatch},
      {"leave_early", leave_early},
      {"be_late_while_one_is_gone", be_late_while_one_is_gone},
      {"die", die},
      {"die_while_a_group_forms", die_while_a_group_forms},
      {"die_before_the_default_group", die_before_the_default_group},
      {"groups_in_different_orders", groups_in_different_orders},
      {"many_groups", many_groups},
      {"ranks_as_threads", ranks_as_threads},
      {"stopped_sender", stopped_sender},
      {"barrier", barrier},
      {"monitored_barrier_and_end", monitored_barrier_and_end},
      {"broadcast_and_leave", broadcast_and_leave},
      {"failing_allocations", failing_allocations},
      {"failing_allocations_of_messages", failing_allocations_of_messages},
      {"poll_a_message", poll_a_message},
      {"receive_from_any_while_one_ends", receive_from_any_while_one_ends},
      {"short_of_descriptors", short_of_descriptors},
      {"join_twice", join_twice},
      {"planted_race", planted_race},
      {"send_what_cannot_be_read", send_what_cannot_be_read},
  };
  return all;
}

int run(const std::string& name) {
  const auto found = cases().find(name);
  if (found == cases().end()) {
    say("unknown case " + name);
    return 2;
  }
  if (number_from("WITHOUT_PIDFD", 0) != 0 && !refuse_pidfd_open(ENOSYS)) {
    say("the kernel takes no filter");
    return 2;
  }
  try {
    return found->second();
  } catch (const PeerFailure& error) {
    say("PeerFailure of rank " + std::to_string(error.rank()) + ": " +
        error.what());
  } catch (const Mismatch& error) {
    say(std::string("Mismatch: ") + error.what());
  } catch (const Timeout& error) {
    say(std::string("Timeout: ") + error.what());
  } catch (const SystemError& error) {
    say(std::string("SystemError: ") + error.what());
  } catch (const InternalError& error) {
    say(std::string("InternalError: ") + error.what());
  } catch (const Error& error) {
    say(std::string("Error: ") + error.what());
  }
  return 10;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::run(argc > 1 ? argv[1] : "");
}
