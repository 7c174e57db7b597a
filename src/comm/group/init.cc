#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/base/descriptor_limit.h"
#include "src/base/log.h"
#include "src/base/own_process.h"
#include "src/base/process_environment.h"
#include "src/comm/diagnosis/recorder.h"
#include "src/comm/group/bootstrap.h"
#include "src/comm/group/crash_trace.h"
#include "src/comm/group/elastic_job.h"
#include "src/comm/group/group_core.h"
#include "src/comm/group/membership.h"
#include "src/comm/group/registry.h"
#include "src/comm/group/round_store.h"
#include "src/comm/group/store_address.h"
#include "src/comm/nccl/gpu_memory.h"
#include "src/comm/rendezvous/formation.h"
#include "src/comm/rendezvous/rendezvous.h"
#include "src/faults/fault_note.h"
#include "src/net/wake_up.h"
#include "src/store/tcp_endpoint.h"
#include "src/store/tcp_store.h"

namespace lockstep {
namespace {

// Runs before main(), since a stream's buffering is set before its first use.
// The launcher requests it: in a pipe, lines would otherwise come in blocks of
// 4 KiB, and a killed rank would lose its last lines.
[[gnu::constructor]] void print_line_by_line_under_a_launcher() {
  if (environment_variable("LOCKSTEP_LINE_BUFFERED").value_or("") == "1")
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
}

// The launcher requests this too.
[[gnu::constructor]] void trace_crashes_under_a_launcher() {
  if (environment_variable("LOCKSTEP_BACKTRACE").value_or("") == "1")
    trace_crashes("rank " + environment_variable("RANK").value_or("?"));
}

// The result of init_process_group and the objects under it.
struct DefaultGroup {
  // Where mpirun carried the store's address, which it does once per process;
  // stays when the group is destroyed.
  std::shared_ptr<const Bootstrap> bootstrap;
  OwnProcessPointer<Rendezvous> seat;
  std::shared_ptr<ProcessGroup> group;
  // The store through which this default group or an earlier one was made.
  std::string reached_store;
  // Where the job re-forms in place; stays when the group is destroyed.
  std::shared_ptr<ElasticJob> elastic;
};

// The default group is the one singleton: users of torch.distributed expect it.
DefaultGroup& default_group_slot() {
  static DefaultGroup slot;
  return slot;
}

// The store's server does not answer a rank for which it has no descriptor, and
// so all others wait too: it needs two per rank (its calls, its last will), and
// some for the server and this rank's client.
void check_that_all_can_be_served(int world_size) {
  constexpr int kListenerEpollWakeUpAndClient = 5;
  const std::vector<WakeUp> room(
      static_cast<std::size_t>(2 * world_size + kListenerEpollWakeUpAndClient));
}

// The result of the first call that succeeded.
std::shared_ptr<const Bootstrap> bootstrap_once(const Membership& membership,
                                                const Settings& settings) {
  auto& met = default_group_slot().bootstrap;
  if (met) return met;
  if (membership.rank == 0) check_that_all_can_be_served(membership.world_size);
  met = std::make_shared<Bootstrap>(bootstrap_by_mpirun(membership, settings));
  return met;
}

// A store that no rank serves was there before the ranks: if this process
// reached it once and cannot reach it now, it has ended and will not come back.
std::shared_ptr<Store> open_lasting_store(const Membership& membership,
                                          StoreOptions options) {
  constexpr std::chrono::seconds kStillThere{2};
  if (default_group_slot().reached_store != membership.store_url)
    return open_store(membership.store_url, options);
  options.deadline = std::min<Deadline>(options.deadline, kStillThere);
  try {
    return open_store(membership.store_url, options);
  } catch (const Timeout&) {
    throw NetworkError(fmt::format(
        "init_process_group: the store at {}, through which this process has "
        "made a group before, does not answer any more\n"
        "  likely:  the process that served it, as a rule the launcher, has "
        "ended\n"
        "  next:    read its log, and start the job anew",
        membership.store_url));
  }
}

// The store that rank 0 serves.
std::shared_ptr<Store> open_rank_zeros_store(const Membership& membership,
                                             const std::string& job,
                                             const StoreOptions& options) {
  if (membership.more_ports.empty())
    return open_store(membership.store_url, options);
  return open_tcp_store(DerivedEndpoint{parse_tcp_url(membership.store_url),
                                        membership.more_ports, job},
                        options);
}

JobInfo job_info(const Membership& membership, const Settings& settings,
                 const std::string& backend) {
  return {.rank = membership.rank,
          .world_size = membership.world_size,
          .job = settings.job,
          .has_token = !settings.token.empty(),
          .settings = settings_of_job(backend, settings)};
}

// Opens the store and takes this rank's seat in it. Rank 0 may still serve an
// earlier group's store at the same address: that store then ends during the
// call, and the new one comes up.
OwnProcessPointer<Rendezvous> take_rank(const Membership& membership,
                                        const Settings& settings,
                                        const std::string& backend) {
  const JobInfo card = job_info(membership, settings, backend);
  StoreOptions options{.token = settings.token,
                       .serve = membership.serves_store,
                       .bind = settings.store_bind,
                       .deadline = settings.rendezvous_timeout};
  if (membership.rank_zero_serves) check_store_address(membership, settings);
  if (membership.serves_store)
    check_that_all_can_be_served(membership.world_size);
  const auto sit_down = [&] {
    return make_unique_in_own_process<Rendezvous>(
        membership.rank_zero_serves
            ? open_rank_zeros_store(membership, settings.job, options)
            : open_lasting_store(membership, options),
        card, settings.rendezvous_timeout);
  };
  try {
    return sit_down();
  } catch (const NetworkError&) {
    if (!membership.rank_zero_serves || membership.rank == 0 ||
        options.deadline.expired())
      throw;
  }
  // One retry is enough: rank 0 cannot be two groups ahead of this rank.
  constexpr std::chrono::seconds kComesUp{10};
  options.deadline = std::min<Deadline>(options.deadline, kComesUp);
  return sit_down();
}

// Every backend uses NCCL for buffers on a GPU; "nccl" requires a GPU.
std::string choose_backend(const std::string& asked, const Settings& settings) {
  if ((asked == "auto" ? settings.backend : asked) == "nccl")
    require_gpus(settings);
  return cpu_backend_name(asked, settings);
}

using MakeBackend =
    std::function<std::shared_ptr<Backend>(std::shared_ptr<Store> store)>;

// Ends `formation` with the error in flight, or the other rank's that caused
// it.
[[noreturn]] void fail(Formation& formation, const GroupIdentity& identity,
                       const World& world) {
  try {
    formation.fail(std::current_exception());
  } catch (const PeerFailure& gone) {
    world.recorder()->note_fault(
        {.culprit = culprit_in_job(identity, gone.rank()),
         .operation = fmt::format("forming group \"{}\"", identity.name)},
        Recorder::AfterFault::kLeavesGroups);
    throw;
  }
}

// Returns the result of `make`, once it has returned on all ranks of the group.
std::shared_ptr<Backend> form(const GroupIdentity& identity, const World& world,
                              const MakeBackend& make) {
  if (identity.size == 1) return make(world.store());
  Formation formation(identity, world.store(),
                      world.settings().rendezvous_timeout);
  try {
    auto made = make(formation.store());
    formation.complete();
    return made;
  } catch (...) {
    fail(formation, identity, world);
  }
}

// Tells the launcher if the ranks cannot find each other because of one of
// them. A rank that has a new default group goes on in spite of an earlier
// fault.
template <class Init>
std::shared_ptr<ProcessGroup> note_outcome(const Settings& settings,
                                           const Init& init) {
  try {
    auto group = init();
    remove_fault_note(settings.fault_file);
    return group;
  } catch (const PeerFailure& gone) {
    write_fault_note(settings.fault_file, {.culprit = gone.rank(),
                                           .operation = "init_process_group"});
    throw;
  }
}

}  // namespace

std::shared_ptr<ProcessGroup> make_group(
    const std::string& backend, const GroupIdentity& identity,
    std::shared_ptr<World> world,
    std::optional<std::chrono::nanoseconds> timeout) {
  auto made = form(identity, *world, [&](std::shared_ptr<Store> store) {
    return make_backend(choose_backend(backend, world->settings()), identity,
                        std::move(store), world->settings());
  });
  const auto chosen =
      timeout.value_or(std::chrono::duration_cast<std::chrono::nanoseconds>(
          world->settings().timeout));
  const auto check_peers = [of_cpu = std::weak_ptr(made)] {
    if (const auto still = of_cpu.lock()) still->check_peers();
  };
  auto core =
      std::make_unique<GroupCore>(std::move(made), identity, chosen, world);
  const auto memory = make_device_memory(identity, world->settings());
  core->set_device_backend(
      [=, world = std::move(world)](Device device) {
        GroupIdentity on_gpus = identity;
        on_gpus.part += "/gpu";
        return form(on_gpus, *world, [&](std::shared_ptr<Store> store) {
          return make_device_backend(
              device, {identity, std::move(store), world->settings(), memory,
                       check_peers});
        });
      },
      [memory](Device device, std::size_t bytes) {
        return memory->allocate(device, bytes);
      });
  return std::make_shared<ProcessGroup>(std::move(core));
}

namespace {

// Where the launcher numbers the ranks anew in each round, ranks that the
// program gives would contradict it.
bool joins_rounds(const InitOptions& options) {
  return ElasticJob::id_of_this_process() && options.init_method == "env://" &&
         !options.rank && !options.world_size;
}

// Makes the default group of the job's present round. Throws when the round is
// over before that.
void form_round(ElasticJob& job, const InitOptions& options,
                const Settings& settings) {
  DefaultGroup& slot = default_group_slot();
  const Membership membership{
      .rank = job.rank(),
      .world_size = static_cast<int>(job.round().members.size()),
      .store_url = slot.reached_store};
  // A client of its own: each has one last will, and this one's is the round's.
  const auto whole = open_lasting_store(
      membership,
      {.token = settings.token, .deadline = settings.rendezvous_timeout});
  const auto part = std::make_shared<RoundStore>(whole, job.round().number);
  OwnProcessPointer<Rendezvous> seat;
  if (membership.world_size > 1)
    seat = make_unique_in_own_process<Rendezvous>(
        part, job_info(membership, settings, options.backend),
        settings.rendezvous_timeout);
  auto group = make_group(
      options.backend, {.rank = membership.rank, .size = membership.world_size},
      std::make_shared<World>(seat ? seat->store() : part, settings, whole));
  part->be_formed();
  job.formed();
  slot.seat = std::move(seat);
  slot.group = std::move(group);
}

// Takes part in the rounds of the job until the group of one has formed.
std::shared_ptr<ProcessGroup> join_newest_round(const InitOptions& options,
                                                const Settings& settings) {
  DefaultGroup& slot = default_group_slot();
  const Deadline deadline(settings.rendezvous_timeout);
  if (!slot.elastic) {
    const std::string url = settings.store.value_or("");
    slot.elastic = std::make_shared<ElasticJob>(
        ElasticJob::id_of_this_process().value_or(0),
        open_store(url, {.token = settings.token, .deadline = deadline}));
    slot.reached_store = url;
  }
  std::exception_ptr failure;
  while (!is_initialized()) {
    try {
      slot.elastic->await_round(deadline);
    } catch (const Timeout&) {
      if (failure) std::rethrow_exception(failure);
      throw;
    }
    try {
      form_round(*slot.elastic, options, settings);
    } catch (const PeerFailure&) {
      failure = std::current_exception();
    } catch (const NetworkError&) {
      failure = std::current_exception();
    } catch (const Timeout&) {
      failure = std::current_exception();
    }
  }
  return default_group();
}

// Makes the default group of a job whose ranks stay the same.
std::shared_ptr<ProcessGroup> form_job(const InitOptions& options,
                                       Settings settings) {
  Membership membership = resolve_membership(options, settings);
  if (membership.world_size > 1) raise_descriptor_limit();
  DefaultGroup made;
  if (membership.needs_bootstrap) {
    made.bootstrap = bootstrap_once(membership, settings);
    membership.store_url = made.bootstrap->store_url;
    settings.store = made.bootstrap->store_url;
    settings.token = made.bootstrap->token;
  }
  made.reached_store = membership.store_url;
  std::shared_ptr<Store> store, whole_store;
  if (membership.world_size > 1) {
    made.seat = take_rank(membership, settings, options.backend);
    store = made.seat->store();
    whole_store = made.seat->whole_store();
  } else {
    store = open_store(membership.store_url);
  }
  made.group = make_group(
      options.backend, {.rank = membership.rank, .size = membership.world_size},
      std::make_shared<World>(std::move(store), settings,
                              std::move(whole_store)));
  default_group_slot() = std::move(made);
  return default_group();
}

}  // namespace

ElasticJob* elastic_job() { return default_group_slot().elastic.get(); }

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options) {
  if (is_initialized())
    throw InvalidArgument(
        "init_process_group: the default group exists already; call "
        "destroy_process_group() first");
  Settings settings = Settings::from_environment();
  set_log_level(settings.log_level);
  if (options.timeout) settings.timeout = *options.timeout;
  return note_outcome(settings, [&] {
    return joins_rounds(options) ? join_newest_round(options, settings)
                                 : form_job(options, settings);
  });
}

std::shared_ptr<ProcessGroup> default_group() {
  if (!is_initialized())
    throw InvalidArgument(
        "there is no default group\n  next:    call init_process_group() "
        "first, or pass a group of your own");
  return default_group_slot().group;
}

bool is_initialized() { return default_group_slot().group != nullptr; }

int get_rank() { return default_group()->rank(); }

int get_world_size() { return default_group()->size(); }

int get_node_local_rank() {
  if (const auto said = Settings::from_environment().local_rank) return *said;
  if (get_world_size() == 1) return 0;
  throw InvalidArgument(
      "which ranks are on one host is not known: LOCAL_RANK and "
      "LOCAL_WORLD_SIZE are not set\n"
      "  next:    start the ranks with lockstep run, torchrun, mpirun or srun");
}

void destroy_process_group() {
  if (!is_initialized()) return;
  default_group_slot().group->leave();
  DefaultGroup none;
  none.bootstrap = std::move(default_group_slot().bootstrap);
  none.reached_store = std::move(default_group_slot().reached_store);
  none.elastic = std::move(default_group_slot().elastic);
  default_group_slot() = std::move(none);
}

}  // namespace lockstep
