// Every environment variable that a rank reads, in one place. (The command
// `lockstep` reads a few more, about its terminal and its companion program.)
//
// A program reads them once (`Settings::from_environment()`) and passes the
// struct on; no layer below it calls getenv.
//
// Threads: a value. from_environment() must not race with setenv.
// Errors:  InvalidArgument naming the variable, its value and what it must be.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/log.h"
#include "lockstep/base/rank_environment.h"

namespace lockstep {

// all; those of up to 64 KiB; none.
enum class OperationCheck { kAll, kSmall, kOff };

// Which rank this is comes first: see RankEnvironment.
struct Settings : RankEnvironment {
  // LOCKSTEP_STORE: the launcher's store, as open_store() takes it. Comes
  // before MASTER_ADDR and MASTER_PORT, which stay free for other programs.
  std::optional<std::string> store;
  // LOCKSTEP_TOKEN: the job's secret, which every connection must prove to
  // have. Without one, who reaches the store can take part.
  std::string token;
  // LOCKSTEP_STORE_BIND: the address of its host at which rank 0 serves the
  // store, where it does; by default all. A loopback one says as well that all
  // ranks are on one host.
  std::string store_bind;
  // LOCKSTEP_BACKEND: used where a program asks for "auto".
  std::string backend = "auto";
  // LOCKSTEP_TIMEOUT and LOCKSTEP_RENDEZVOUS_TIMEOUT, in seconds: how long a
  // collective and finding each other may take.
  std::chrono::duration<double> timeout = std::chrono::minutes(30);
  std::chrono::duration<double> rendezvous_timeout = std::chrono::minutes(5);
  // LOCKSTEP_HEAP_BYTES: address space reserved for a process's shared heap;
  // memory is used only as it is touched. 0 turns the heap off.
  std::size_t heap_bytes = std::size_t{1} << 34;
  // LOCKSTEP_HEAP_KEPT_BYTES: how much memory the free blocks of that heap may
  // keep for the next who asks.
  std::size_t heap_kept_bytes = std::size_t{1} << 32;
  // LOCKSTEP_INTERFACE: the network interface (its name, or an address of it)
  // over which ranks of other hosts reach this one; by default the one that
  // routes to the store's host.
  std::string interface;
  // LOCKSTEP_CHECK: before which collectives between hosts the ranks compare
  // what they called. Those of up to 16 KiB are compared in any case, for free.
  OperationCheck check = OperationCheck::kAll;
  // LOCKSTEP_PLUGIN_PATH: a folder where plug-ins (liblockstep_gloo.so, …) are
  // looked for first. Only needed where they lie in none of the places that
  // comm/wire/transport_plugin.h lists; a launcher names its own.
  std::string plugin_path;
  // LOCKSTEP_SHARE_GPUS: 1 lets more ranks than a host has GPUs run on them,
  // for tests: rank r of the host uses GPU r modulo their number, and the ranks
  // tell NCCL that each is a host of its own, because NCCL refuses two ranks on
  // one GPU otherwise. NVIDIA does not support it, and each rank must be a
  // process.
  bool share_gpus = false;
  // LOCKSTEP_WIRE: the engine between the hosts of the backend "hybrid": gloo
  // or mpi.
  std::string wire = "gloo";
  // LOCKSTEP_HOST_ID: overrides who counts as being on one host: ranks that
  // give the same text. By default the kernel is asked.
  std::string host_id;
  // LOCKSTEP_PROGRESS_FD: where rank 0's progress records go under a launcher.
  std::optional<int> progress_fd;
  // LOCKSTEP_DUMP_DIR: the folder for this rank's record of its operations when
  // one fails or somebody asks; empty: none is written.
  std::string dump_directory;
  // LOCKSTEP_STALL_WARNING, in seconds: how long an operation may wait before a
  // line in the log says for whom.
  std::chrono::duration<double> stall_warning = std::chrono::seconds(10);
  // LOCKSTEP_LOG: the level from which lines are logged; debug lists every
  // operation of a group in the order of its calls.
  LogLevel log_level = LogLevel::kWarn;

  // The index of this rank's GPU; `count` tells how many its host has, and is
  // asked only where ranks share them.
  int gpu_of_rank(const std::function<int()>& count) const;

  static Settings from_environment();

  // The same, from any source of variables.
  static Settings read(const EnvironmentLookup& lookup);
};

}  // namespace lockstep
