// Every environment variable that a rank reads, in one place. (The command
// `lockstep` reads a few more, about its terminal and its companion program.)
//
// A program reads them once (`Settings::from_environment()`) and passes the
// struct on; no layer below it calls getenv.
//
// Threads: a value. from_environment() must not race with setenv.
// Errors:  InvalidArgument naming the variable, its value and the expected one.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/log.h"
#include "src/base/rank_environment.h"

namespace lockstep {

// Check all collectives, those of at most 64 KiB, or none.
enum class OperationCheck { kAll, kSmall, kOff };

// "all", "small" or "off".
std::string_view name_of(OperationCheck check);

// The base class holds the rank and the world size.
struct Settings : RankEnvironment {
  // LOCKSTEP_STORE: the url of the launcher's store, for open_store(). It takes
  // precedence over MASTER_ADDR and MASTER_PORT, which stay free for other
  // programs.
  std::optional<std::string> store;
  // LOCKSTEP_TOKEN: the job's secret; both ends of every connection prove that
  // they have it. Without a token, any process that reaches the store can take
  // part.
  std::string token;
  // LOCKSTEP_STORE_BIND: the local address at which rank 0 listens when it
  // serves the store; by default all addresses. A loopback address also means
  // that all ranks are on one host.
  std::string store_bind;
  // LOCKSTEP_BACKEND: used where a program asks for "auto".
  std::string backend = "auto";
  // LOCKSTEP_TIMEOUT and LOCKSTEP_RENDEZVOUS_TIMEOUT, in seconds: the time
  // limits of a collective and of the rendezvous.
  std::chrono::duration<double> timeout = std::chrono::minutes(30);
  std::chrono::duration<double> rendezvous_timeout = std::chrono::minutes(5);
  // LOCKSTEP_HEAP_BYTES: address space reserved for a process's shared heap;
  // memory is used only as it is touched. 0 turns the heap off.
  std::size_t heap_bytes = std::size_t{1} << 34;
  // LOCKSTEP_HEAP_KEPT_BYTES: how much memory the free blocks of that heap may
  // keep for later allocations.
  std::size_t heap_kept_bytes = std::size_t{1} << 32;
  // LOCKSTEP_INTERFACE: the network interface (its name, or an address of it)
  // over which ranks on other hosts reach this one; by default the one that
  // routes to the store's host.
  std::string interface;
  // LOCKSTEP_CHECK: for which collectives between hosts the ranks compare their
  // calls first. Collectives of at most 16 KiB are always compared, at no cost.
  OperationCheck check = OperationCheck::kAll;
  // LOCKSTEP_PLUGIN_PATH: a folder where plug-ins (liblockstep_gloo.so, …) are
  // searched first. It is needed only when they lie in none of the places that
  // src/comm/wire/transport_plugin.h lists. A launcher passes its own folder.
  std::string plugin_path;
  // LOCKSTEP_SHARE_GPUS: 1 lets a host run more ranks than it has GPUs, for
  // tests. Rank r of the host uses GPU r modulo their number, and each rank
  // tells NCCL that it is a host of its own, because NCCL otherwise refuses two
  // ranks on one GPU. NVIDIA does not support it, and each rank must be a
  // process.
  bool share_gpus = false;
  // LOCKSTEP_WIRE: the engine that the backend "hybrid" uses between hosts:
  // gloo or mpi.
  std::string wire = "gloo";
  // LOCKSTEP_HOST_ID: ranks with the same text count as ranks of one host. By
  // default the kernel decides.
  std::string host_id;
  // LOCKSTEP_PROGRESS_FD: the descriptor for rank 0's progress records, set by
  // a launcher.
  std::optional<int> progress_fd;
  // LOCKSTEP_DUMP_DIR: the folder to which this rank writes the record of its
  // operations when one fails or a record is requested; empty: no record.
  std::string dump_directory;
  // LOCKSTEP_STEPS_FILE and LOCKSTEP_STEPS_SLOT: where this rank reports its
  // steps for `lockstep status` (docs/formats/running_jobs.md), set by a
  // launcher; empty: nowhere.
  std::string steps_file;
  int steps_slot = 0;
  // LOCKSTEP_FAULT_FILE: where this rank tells its launcher that it fails
  // because of another rank (docs/formats/fault_note.md), set by a launcher;
  // empty: nowhere.
  std::string fault_file;
  // LOCKSTEP_STALL_WARNING, in seconds: how long an operation waits before a
  // log line names the missing ranks.
  std::chrono::duration<double> stall_warning = std::chrono::seconds(10);
  // LOCKSTEP_LOG: the level from which lines are logged; debug lists every
  // operation of a group in the order of its calls.
  LogLevel log_level = LogLevel::kWarn;

  // The index of this rank's GPU. `count` returns the number of GPUs of this
  // host; it is called only when ranks share GPUs.
  int gpu_of_rank(const std::function<int()>& count) const;

  static Settings from_environment();

  // Reads the settings from `environment`, in which an empty variable of
  // Lockstep's counts as unset.
  static Settings read(const EnvironmentLookup& environment);
};

}  // namespace lockstep
