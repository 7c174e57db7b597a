#include "src/base/rank_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr int kMostValue = std::numeric_limits<int>::max();

std::optional<int> read_int(const EnvironmentLookup& lookup, const char* name,
                            int least, int most = kMostValue) {
  const auto number = read_integer(lookup, name, least, most);
  if (!number) return std::nullopt;
  return static_cast<int>(*number);
}

// The variables in which a launcher describes a rank.
struct Names {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};
constexpr Names kTorchrun{"RANK", "WORLD_SIZE", "LOCAL_RANK",
                          "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                         "OMPI_COMM_WORLD_LOCAL_RANK",
                         "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmi{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
                     "MPI_LOCALNRANKS"};

bool is_set(const EnvironmentLookup& lookup, const Names& names) {
  return lookup(names.rank).has_value() || lookup(names.world_size).has_value();
}

void read_place(const EnvironmentLookup& lookup, const Names& names,
                RankEnvironment& found) {
  found.rank = read_int(lookup, names.rank, 0);
  found.world_size = read_int(lookup, names.world_size, 1);
  found.local_rank = read_int(lookup, names.local_rank, 0);
  found.local_world_size = read_int(lookup, names.local_world_size, 1);
  if (found.rank && found.world_size && *found.rank >= *found.world_size)
    throw InvalidArgument(fmt::format(
        "{} is {} but {} is {}: ranks count from 0, so {} must be at most {}",
        names.rank, *found.rank, names.world_size, *found.world_size,
        names.rank, *found.world_size - 1));
}

// When both kinds of mpirun set variables, they must agree.
void check_agreement(const EnvironmentLookup& lookup) {
  const auto check = [&](const char* one, const char* other) {
    const auto first = lookup(one);
    const auto second = lookup(other);
    if (first && second && *first != *second)
      throw InvalidArgument(fmt::format(
          "the environment variable {} is {}, but {} is {}: they come from two "
          "MPI launchers\n  next:    start the program by one of them, or "
          "unset the variables of the other",
          one, *first, other, *second));
  };
  check(kOpenMpi.rank, kPmi.rank);
  check(kOpenMpi.world_size, kPmi.world_size);
}

// Sets the ports that follow from `number`. Neighbouring numbers have different
// ones.
void derive_ports(std::int64_t number, RankEnvironment& found) {
  constexpr int kFirstPort = 12000;
  constexpr int kPorts = 16000;
  constexpr int kTried = 8;
  constexpr int kDistance = 2003;  // prime to kPorts
  const auto port = [&](int turn) {
    return kFirstPort + static_cast<int>((number + turn * kDistance) % kPorts);
  };
  found.master_port = port(0);
  found.more_ports.clear();
  for (int turn = 1; turn < kTried; ++turn)
    found.more_ports.push_back(port(turn));
}

// Slurm also sets its variables in batch scripts and shells of an allocation,
// which are not ranks; their step numbers are near 2^32.
bool is_step_of_srun(const EnvironmentLookup& lookup) {
  constexpr std::int64_t kFirstSpecial = 0xfffffff0;
  const auto step = read_integer(lookup, "SLURM_STEP_ID", 0, 0xffffffff);
  return step && *step < kFirstSpecial && lookup("SLURM_PROCID");
}

const char* name_of_step_size(const EnvironmentLookup& lookup) {
  return lookup("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS"
                                        : "SLURM_NTASKS";
}

// srun may set PMI's variables itself. An mpirun that starts its agents by srun
// leaves both, and the agents' numbers are not the ranks'.
bool is_rank_of_hydra(const EnvironmentLookup& lookup) {
  if (!is_set(lookup, kPmi)) return false;
  return !is_step_of_srun(lookup) ||
         lookup(kPmi.rank) != lookup("SLURM_PROCID") ||
         lookup(kPmi.world_size) != lookup(name_of_step_size(lookup));
}

// The number of tasks on node `node` in a list such as "2(x3),1".
std::optional<int> tasks_of_node(std::string_view list, int node) {
  while (!list.empty()) {
    const std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), entry.size() + 1));
    const std::size_t brace = entry.find("(x");
    const auto number = [](std::string_view text) {
      const std::string digits(text.substr(0, text.find(')')));
      return read_int([&](const std::string&) { return std::optional(digits); },
                      "SLURM_STEP_TASKS_PER_NODE", 1);
    };
    const int nodes = brace == std::string_view::npos
                          ? 1
                          : number(entry.substr(brace + 2)).value_or(1);
    if (node < nodes) return number(entry.substr(0, brace));
    node -= nodes;
  }
  return std::nullopt;
}

void read_srun(const EnvironmentLookup& lookup, RankEnvironment& found) {
  read_place(lookup,
             {"SLURM_PROCID", name_of_step_size(lookup), "SLURM_LOCALID", ""},
             found);
  const int node = read_int(lookup, "SLURM_NODEID", 0).value_or(0);
  if (const auto list = lookup("SLURM_STEP_TASKS_PER_NODE"))
    found.local_world_size = tasks_of_node(*list, node);
  if (const auto hosts = lookup("SLURM_STEP_NODELIST"))
    found.master_address = first_host(*hosts);
  const auto job = read_integer(lookup, "SLURM_JOB_ID", 0, 0xffffffff);
  const auto step = read_integer(lookup, "SLURM_STEP_ID", 0, 0xffffffff);
  if (!job || !step) return;
  found.job = fmt::format("slurm {}.{}", *job, *step);
  // 7: neighbouring jobs have a few steps each before their ports collide.
  derive_ports(*job * 7 + *step, found);
}

// An IPv6 number may stand in brackets, as in a URL.
std::string without_brackets(const std::string& host) {
  if (!host.starts_with('[') || !host.ends_with(']')) return host;
  return host.substr(1, host.size() - 2);
}

// Whether torchrun's agent itself serves PyTorch's store at MASTER_PORT.
bool agent_holds_port(const EnvironmentLookup& lookup,
                      const RankEnvironment& found) {
  return found.launcher == StartedBy::kTorchrun &&
         lookup("TORCHELASTIC_USE_AGENT_STORE") == "True";
}

void read_master(const EnvironmentLookup& lookup, RankEnvironment& found) {
  if (const auto address = lookup("MASTER_ADDR"))
    found.master_address = without_brackets(*address);
  const auto port = read_int(lookup, "MASTER_PORT", 0, 65535);
  if (!port) return;
  if (agent_holds_port(lookup, found)) {
    derive_ports(*port, found);
    // The ports of several numbers overlap. Jobs without an id of their own
    // differ in the port of their agents.
    found.job += fmt::format("{}at port {}",
                             found.job.empty() ? "torchrun " : " ", *port);
    return;
  }
  found.master_port = *port;
  found.more_ports.clear();
}

}  // namespace

std::string_view name_of(StartedBy launcher) {
  switch (launcher) {
    case StartedBy::kNone:
      return "none";
    case StartedBy::kTorchrun:
      return "torchrun or lockstep run";
    case StartedBy::kMpirun:
      return "mpirun";
    case StartedBy::kHydra:
      return "mpirun (hydra)";
    case StartedBy::kSrun:
      return "srun";
  }
  return "unknown launcher";
}

bool is_set_per_job(std::string_view variable) {
  constexpr std::array<std::string_view, 19> kVariables{"RANK",
                                                        "LOCAL_RANK",
                                                        "WORLD_SIZE",
                                                        "LOCAL_WORLD_SIZE",
                                                        "GROUP_RANK",
                                                        "GROUP_WORLD_SIZE",
                                                        "ROLE_RANK",
                                                        "ROLE_WORLD_SIZE",
                                                        "ROLE_NAME",
                                                        "MASTER_ADDR",
                                                        "MASTER_PORT",
                                                        "LOCKSTEP_STORE",
                                                        "LOCKSTEP_TOKEN",
                                                        "LOCKSTEP_PROGRESS_FD",
                                                        "LOCKSTEP_SPAWN",
                                                        "LOCKSTEP_ELASTIC_ID",
                                                        "LOCKSTEP_FAULT_FILE",
                                                        "LOCKSTEP_STEPS_FILE",
                                                        "LOCKSTEP_STEPS_SLOT"};
  return variable.starts_with("TORCHELASTIC_") ||
         std::ranges::find(kVariables, variable) != kVariables.end();
}

std::string first_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    const std::size_t open = std::min(list.find_first_of("[,"), list.size());
    host += list.substr(0, open);
    list.remove_prefix(open);
    if (list.empty() || list.front() == ',') break;
    const std::size_t close = std::min(list.find(']'), list.size() - 1);
    const std::string_view range = list.substr(1, close - 1);
    host += range.substr(0, range.find_first_of("-,"));
    list.remove_prefix(close + 1);
  }
  return host;
}

// A shell or a container may have set RANK and WORLD_SIZE before mpirun
// started: each of its processes would train alone. (A script that mpirun
// starts on each host, and that starts ranks there, makes no fewer of them.)
void check_world_of_mpirun(const EnvironmentLookup& lookup,
                           std::optional<int> world_size) {
  for (const char* launched : {"TORCHELASTIC_RUN_ID", "LOCKSTEP_STORE"})
    if (lookup(launched)) return;
  const bool open_mpi = is_set(lookup, kOpenMpi);
  if (!open_mpi && !is_rank_of_hydra(lookup)) return;
  const char* const name = (open_mpi ? kOpenMpi : kPmi).world_size;
  const auto processes = read_int(lookup, name, 1);
  if (!processes || !world_size || *world_size >= *processes) return;
  throw InvalidArgument(fmt::format(
      "WORLD_SIZE is {}, but mpirun started {} processes ({})\n"
      "  next:    unset RANK and WORLD_SIZE, and mpirun's processes form one "
      "job; or unset {}, and each is a job of its own",
      *world_size, *processes, name, name));
}

RankEnvironment read_rank_environment(const EnvironmentLookup& environment) {
  const EnvironmentLookup lookup = without_empty(environment);
  RankEnvironment found;
  if (is_set(lookup, kTorchrun)) {
    found.launcher = StartedBy::kTorchrun;
    read_place(lookup, kTorchrun, found);
    check_world_of_mpirun(lookup, found.world_size);
    if (const auto job = lookup("TORCHELASTIC_RUN_ID"))
      found.job = "torchrun " + *job;
  } else if (is_set(lookup, kOpenMpi)) {
    check_agreement(lookup);
    found.launcher = StartedBy::kMpirun;
    read_place(lookup, kOpenMpi, found);
    if (const auto job = lookup("PMIX_NAMESPACE")) found.job = "mpirun " + *job;
  } else if (is_rank_of_hydra(lookup)) {
    found.launcher = StartedBy::kHydra;
    read_place(lookup, kPmi, found);
    found.pmi_descriptor = read_int(lookup, "PMI_FD", 0);
  } else if (is_step_of_srun(lookup)) {
    found.launcher = StartedBy::kSrun;
    read_srun(lookup, found);
  } else {
    found.local_rank = read_int(lookup, kTorchrun.local_rank, 0);
    found.local_world_size = read_int(lookup, kTorchrun.local_world_size, 1);
  }
  read_master(lookup, found);
  return found;
}

}  // namespace lockstep
