#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "apps/doctor/doctor_findings.h"
#include "apps/job/companion.h"
#include "apps/job/host_memory.h"
#include "apps/train/train_command.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "src/base/control_groups.h"
#include "src/base/first_line.h"
#include "src/launch/worker/cpu_share.h"
#include "src/launch/worker/worker_process.h"
#include "src/net/poll_set.h"

namespace lockstep {
namespace {

constexpr double kBytesPerGibibyte = 1 << 30;

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : fmt::format("{}", limit);
}

std::string bytes_text(std::uint64_t bytes) {
  if (bytes == RLIM_INFINITY) return "unlimited";
  return fmt::format("{:.0f} MiB", static_cast<double>(bytes) / (1 << 20));
}

rlim_t soft_limit(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0)
    return RLIM_INFINITY;
  return limit.rlim_cur;
}

// A program's output and exit status.
struct ProgramEnd {
  std::string output;
  std::optional<ExitStatus> status;  // nothing: it did not end in time
};

ProgramEnd run_briefly(WorkerCommand command, Deadline deadline) {
  WorkerProcess process(std::move(command), ProgressPipe::kNone);
  ProgramEnd end;
  const auto read_from = [&](FileDescriptor& pipe) {
    std::array<char, 4096> bytes{};
    const ssize_t count = ::read(pipe.get(), bytes.data(), bytes.size());
    if (count > 0) end.output.append(bytes.data(), static_cast<size_t>(count));
    if (count == 0) pipe.reset();
  };
  while (process.standard_output || process.standard_error) {
    if (deadline.expired()) return end;
    PollSet set;
    for (auto* pipe : {&process.standard_output, &process.standard_error})
      set.watch(pipe->get(), POLLIN, [&, pipe] { read_from(*pipe); });
    set.wait(deadline);
  }
  while (!(end.status = process.exit_status()) && !deadline.expired()) {
    PollSet set;
    set.watch(process.end(), POLLIN, [] {});
    set.wait(deadline);
  }
  return end;
}

// Both only matter to other libraries, and the default of containers is small.
void advise_on(std::uint64_t locked, std::uint64_t shm, Finding& finding) {
  constexpr std::uint64_t kLittleShared = std::uint64_t{256} << 20;
  constexpr std::uint64_t kLittleLocked = std::uint64_t{1} << 20;
  if (shm < kLittleShared)
    finding.next =
        "enlarge /dev/shm for OpenMPI and NCCL: mount -o remount,size=50% "
        "/dev/shm, or docker run --shm-size=1g";
  if (locked < kLittleLocked)
    finding.next += fmt::format(
        "{}raise the limit on locked memory for RDMA networks: ulimit -l "
        "unlimited (in /etc/security/limits.conf: memlock)",
        finding.next.empty() ? "" : "; ");
  if (!finding.next.empty()) finding.health = Health::kLimited;
}

// The program's presence does not suffice: it may not find LibTorch.
Finding try_trainer(const std::string& program,
                    const EnvironmentLookup& lookup) {
  Finding finding{.topic = "LibTorch"};
  try {
    WorkerCommand command{.program = program,
                          .arguments = {program, "--version"},
                          .environment = current_environment()};
    prepend_library_folder(command.environment, torch_library_folder(lookup));
    const ProgramEnd end =
        run_briefly(std::move(command), Deadline(std::chrono::seconds(60)));
    const std::string said = first_line(end.output);
    if (end.status && end.status->ended_well()) {
      finding.text = fmt::format("{}, in {}", said, program);
      return finding;
    }
    finding.text = end.status
                       ? fmt::format("{} does not start: {}", program, said)
                       : fmt::format("{} has not started within 60 s", program);
    finding.next =
        "name the folder of the LibTorch that Lockstep was built with in "
        "LOCKSTEP_TORCH, or build and install Lockstep anew";
  } catch (const Error& error) {
    finding.text = first_line(error.what());
    finding.next = "name a LibTorch in LOCKSTEP_TORCH, or unset it";
  }
  finding.health = Health::kBad;
  return finding;
}

}  // namespace

std::vector<Finding> list_gpus(const GpuInventory& inventory) {
  std::vector<Finding> findings;
  for (const GpuState& gpu : inventory.gpus) {
    Finding finding{
        .topic = fmt::format("GPU {}", gpu.index),
        .text = fmt::format("{}; driver {}", describe(gpu), inventory.driver)};
    for (const GpuProcess& process : gpu.processes)
      finding.text += fmt::format(
          "; process {}: {}", process.pid,
          process.bytes ? bytes_text(*process.bytes) : "memory not known");
    findings.push_back(std::move(finding));
  }
  return findings;
}

Finding examine_trainer(const EnvironmentLookup& lookup) {
  const auto program = find_train_program(lookup);
  if (program) return try_trainer(*program, lookup);
  return {.topic = "LibTorch",
          .health = Health::kLimited,
          .text =
              "lockstep-train, which loads it, is not here; only `lockstep "
              "train` needs it",
          .next = "./dev build finds or installs LibTorch, and builds it"};
}

Finding examine_cores() {
  const std::size_t allowed = allowed_cores().size();
  const int usable = usable_cores();
  Finding finding{.topic = "cores", .text = fmt::format("{}", usable)};
  if (static_cast<std::size_t>(usable) < allowed)
    finding.text += fmt::format(
        " ({} by number, of which a control group grants part)", allowed);
  if (usable < 2) {
    finding.health = Health::kLimited;
    finding.next = "several ranks on one core are slower than one";
  }
  return finding;
}

Finding examine_memory() {
  const auto size_of = [](const std::optional<std::uint64_t>& bytes) {
    return bytes ? fmt::format("{:.1f} GiB",
                               static_cast<double>(*bytes) / kBytesPerGibibyte)
                 : "unknown size";
  };
  Finding finding{
      .topic = "memory",
      .text = fmt::format("{}, {} of them available", size_of(total_memory()),
                          size_of(available_memory()))};
  if (const auto granted = memory_limit())
    finding.text +=
        fmt::format("; a control group grants {:.1f} GiB",
                    static_cast<double>(*granted) / kBytesPerGibibyte);
  return finding;
}

Finding examine_vector_units() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  const bool avx512 = __builtin_cpu_supports("avx512f") != 0 &&
                      __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512vl") != 0 &&
                      __builtin_cpu_supports("avx512dq") != 0;
  if (avx512) return {.topic = "vector units", .text = "AVX-512, AVX2"};
  if (avx2) return {.topic = "vector units", .text = "AVX2"};
#endif
  return {.topic = "vector units",
          .health = Health::kLimited,
          .text = "neither AVX2 nor AVX-512: sums run in portable code"};
}

Finding examine_memory_limits() {
  Finding finding{.topic = "memory limits"};
  struct statvfs shm {};
  const bool has_shm = ::statvfs("/dev/shm", &shm) == 0;
  finding.text = fmt::format(
      "address space {}, files {}, locked {}; /dev/shm {}",
      bytes_text(soft_limit(RLIMIT_AS)), bytes_text(soft_limit(RLIMIT_FSIZE)),
      bytes_text(soft_limit(RLIMIT_MEMLOCK)),
      has_shm ? bytes_text(std::uint64_t{shm.f_blocks} * shm.f_frsize)
              : "is not there");
  finding.text += " (for OpenMPI and NCCL: the shared heap needs none of it)";
  advise_on(soft_limit(RLIMIT_MEMLOCK),
            has_shm ? std::uint64_t{shm.f_blocks} * shm.f_frsize : 0, finding);
  return finding;
}

Finding examine_limits() {
  // Each rank holds a few descriptors for every other rank of its host.
  constexpr rlim_t kFewDescriptors = 256;
  constexpr rlim_t kFewThreads = 64;
  const rlim_t files = soft_limit(RLIMIT_NOFILE);
  const rlim_t threads = soft_limit(RLIMIT_NPROC);
  const auto granted = thread_limit();
  std::string mappings;
  std::getline(std::ifstream("/proc/sys/vm/max_map_count"), mappings);
  Finding finding{
      .topic = "limits",
      .text = fmt::format(
          "{} open files, {} threads of this user{}, {} "
          "mappings per process",
          limit_text(files), limit_text(threads),
          granted ? fmt::format(" ({} in this control group)", *granted) : "",
          mappings)};
  if (files < kFewDescriptors) {
    finding.health = Health::kLimited;
    finding.next = "raise the number of open files: ulimit -n 4096";
  } else if (threads < kFewThreads || granted.value_or(threads) < kFewThreads) {
    finding.health = Health::kLimited;
    finding.next = "raise the number of threads: ulimit -u 4096";
  }
  return finding;
}

}  // namespace lockstep
