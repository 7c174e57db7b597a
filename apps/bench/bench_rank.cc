#include "apps/bench/bench_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iostream>
#include <numeric>
#include <optional>
#include <utility>

#include "apps/bench/bench_gpu_engine.h"
#include "apps/bench/bench_group_engine.h"
#include "apps/bench/bench_report.h"
#include "apps/job/gnuplot.h"
#include "apps/job/host_memory.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/base/first_line.h"
#include "src/base/process_environment.h"
#include "src/base/text_file.h"
#include "src/comm/group/group_core.h"
#include "src/comm/group/registry.h"
#include "src/comm/group/same_job.h"
#include "src/comm/nccl/gpu.h"
#include "src/comm/nccl/gpu_plugin.h"
#include "src/comm/nccl/nccl_rendezvous.h"

namespace lockstep {
namespace {

// Rank 0's table or JSON; other ranks print nothing.
class Printer {
 public:
  Printer(const BenchOptions& options, int rank)
      : table_(rank == 0 && !options.json), path_(options.output) {
    if (rank != 0 || path_.empty()) return;
    file_.open(path_);
    check();
  }

  void table(const std::string& text) {
    if (table_) write(text);
  }
  void write(const std::string& text) {
    (path_.empty() ? std::cout : file_) << text << std::flush;
    check();
  }

 private:
  void check() {
    const std::ostream& stream =
        path_.empty() ? std::cout : static_cast<std::ostream&>(file_);
    if (!stream)
      throw SystemError(
          "cannot write " + (path_.empty() ? "to standard output" : path_),
          errno);
  }

  bool table_;
  std::string path_;
  std::ofstream file_;
};

// The GPU of the buffers; nothing: CPU memory.
std::optional<Gpu> gpu_of_rank(const BenchOptions& options,
                               const Settings& settings) {
  if (options.devices.device == "cpu") return std::nullopt;
  const LockstepGpuTable& table = load_gpu_table(settings);
  const Gpu gpu(table, settings.gpu_of_rank([&] { return Gpu::count(table); }));
  check_gpu(gpu);
  return gpu;
}

// The host memory that all ranks need. Buffers on GPUs are copied one block at
// a time.
std::size_t host_bytes(const BenchOptions& options,
                       const CollectiveCase& wanted, int ranks) {
  if (options.devices.device == "cpu")
    return bytes_of_all_buffers(wanted, ranks);
  return elements_of_block(wanted, ranks) * size_of(wanted.type) *
         static_cast<std::size_t>(ranks);
}

// Without enough memory the kernel would kill arbitrary processes. Counts all
// ranks as ranks of this host, divided by `hosts`.
void check_memory(const BenchOptions& options, int ranks, int hosts) {
  const auto available = available_memory();
  if (!available) return;
  CollectiveCase largest = options.wanted;
  largest.bytes = options.sizes.back();
  const std::size_t needed =
      host_bytes(options, largest, ranks) / static_cast<std::size_t>(hosts);
  if (needed <= *available) return;
  throw InvalidArgument(fmt::format(
      "--bytes: {} on {} ranks need {:.1f} GiB of this host's memory, of which "
      "{:.1f} GiB are free; end at a smaller size or take fewer ranks",
      describe_bytes(largest.bytes), ranks, std::ldexp(needed, -30),
      std::ldexp(*available, -30)));
}

// A backend to measure.
struct Contender {
  std::unique_ptr<Engine> engine;
  std::size_t index;  // in the report
};

// The group of all ranks on backend `name`, or null with the reason in
// `left_out`. The outcome is the same on every rank.
std::shared_ptr<ProcessGroup> try_backend(ProcessGroup& control,
                                          const std::string& name,
                                          std::string& left_out) {
  std::vector<int> ranks(static_cast<std::size_t>(control.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shared_ptr<ProcessGroup> group;
  std::string reason;
  try {
    group = new_group(control, ranks, {.backend = name});
  } catch (const Error& error) {
    reason = first_line(error.what());
  }
  for (const Bytes& each :
       all_gather_bytes(control, std::as_bytes(std::span(reason)))) {
    left_out.assign(reinterpret_cast<const char*>(each.data()), each.size());
    if (!left_out.empty()) return nullptr;
  }
  return group;
}

std::vector<Contender> find_contenders(
    const BenchOptions& options, const std::shared_ptr<ProcessGroup>& control,
    BenchReport& report) {
  std::vector<Contender> contenders;
  if (options.backend != "all") {
    report.backends.push_back(
        {.name = control->backend(), .rows = {}, .left_out = ""});
    contenders.push_back(
        {.engine = std::make_unique<GroupEngine>(control), .index = 0});
    return contenders;
  }
  for (const std::string_view name : backend_names()) {
    if (name == "reference") continue;
    BackendRows& backend = report.backends.emplace_back();
    backend.name = name;
    auto group = try_backend(*control, backend.name, backend.left_out);
    if (group)
      contenders.push_back(
          {.engine = std::make_unique<GroupEngine>(std::move(group)),
           .index = report.backends.size() - 1});
  }
  return contenders;
}

std::vector<Contender> contender_on(
    const Gpu& gpu, const std::shared_ptr<ProcessGroup>& control,
    BenchReport& report) {
  report.device = "cuda";
  report.libraries = gpu.table().libraries;
  report.backends.push_back({.name = "nccl", .rows = {}, .left_out = ""});
  std::vector<Contender> contenders;
  contenders.push_back(
      {.engine = std::make_unique<GpuEngine>(control, gpu), .index = 0});
  return contenders;
}

BenchRow measure(const Contender& contender, const CollectiveCase& wanted,
                 const RoundOptions& rounds) {
  Engine& engine = *contender.engine;
  const std::size_t bytes = rounded_bytes(wanted, engine.size());
  const Timings timings = measure_collective(engine, wanted, rounds);
  return {.bytes = bytes,
          .count = bytes == 0 ? 0 : elements_of_block(wanted, engine.size()),
          .timings = timings,
          .bandwidth =
              bandwidth(wanted.collective, engine.size(), bytes, timings.p50)};
}

// Measures each size on all backends in turn, so a disturbance of the machine
// affects all of them.
void measure_all(const BenchOptions& options, std::vector<Contender> contenders,
                 BenchReport& report, Printer& printer) {
  std::size_t last_bytes = 0;
  for (const std::size_t size : options.sizes) {
    CollectiveCase wanted = options.wanted;
    wanted.bytes = size;
    const std::size_t bytes = rounded_bytes(wanted, report.ranks);
    if (size != options.sizes.front() && bytes == last_bytes) continue;
    last_bytes = bytes;
    std::erase_if(contenders, [&](const Contender& contender) {
      BackendRows& backend = report.backends[contender.index];
      try {
        const BenchRow row =
            measure(contender, wanted, {.rounds = options.iterations});
        printer.table(table_row(backend.name, row));
        backend.rows.push_back(row);
      } catch (const InvalidArgument& error) {
        // A backend refuses an unsupported collective on every rank.
        if (options.backend != "all") throw;
        backend.left_out = first_line(error.what());
      }
      return !backend.left_out.empty();
    });
  }
}

// What every rank must have been started for. Only rank 0 writes.
std::vector<JobField> job_of(const BenchOptions& options) {
  return {{"the command", "lockstep bench"},
          {"the collective", options.collective},
          {"--device", options.devices.device},
          {"--backend", options.backend},
          {"--bytes", options.bytes},
          {"--step-factor", std::to_string(options.step_factor)},
          {"--dtype", options.dtype},
          {"--op", options.op},
          {"--memory", options.memory.empty() ? "shared" : options.memory},
          {"--iters", options.iterations ? std::to_string(*options.iterations)
                                         : "not given"}};
}

}  // namespace

void run_bench_rank(const BenchOptions& options, const Settings& settings) {
  const auto gpu = gpu_of_rank(options, settings);
  const auto control = init_process_group(
      {.backend = options.backend == "all" ? "auto" : options.backend});
  check_same_job(*control, job_of(options));
  const int size = control->size();
  const int local =
      control->core().world()->settings().local_world_size.value_or(size);
  check_memory(options, size, std::max(1, size / std::max(1, local)));
  BenchReport report{
      .what = options.wanted, .ranks = control->size(), .backends = {}};
  auto contenders = gpu ? contender_on(*gpu, control, report)
                        : find_contenders(options, control, report);
  Printer printer(options, control->rank());
  printer.table(table_head(report));
  measure_all(options, std::move(contenders), report, printer);
  printer.table(table_end(report));
  if (control->rank() == 0) {
    if (options.json) printer.write(to_json(report));
    if (!options.plot.empty())
      run_gnuplot(require_gnuplot(environment_variable, "--plot"),
                  gnuplot_script(report, options.plot));
  }
  // No rank may leave while another still needs it.
  control->barrier({.label = "the end of the benchmark"}).wait();
  destroy_process_group();
}

}  // namespace lockstep
