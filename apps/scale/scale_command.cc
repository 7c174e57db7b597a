#include "apps/scale/scale_command.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <utility>

#include "apps/job/gnuplot.h"
#include "apps/job/rank_place.h"
#include "apps/scale/scale_plot.h"
#include "apps/scale/scale_report.h"
#include "lockstep/base/error.h"
#include "src/base/rank_environment.h"
#include "src/base/report_text.h"
#include "src/base/text_file.h"
#include "src/launch/job/job.h"
#include "src/launch/worker/cpu_share.h"
#include "src/launch/worker/gpu_inventory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A job failed and has reported why.
struct JobFailed {
  int exit_code;
};

// A folder that the destructor removes unless keep() was called.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = fs::temp_directory_path() / "lockstep-scale-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr)
      throw SystemError("cannot make a temporary folder", errno);
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    if (!kept_) fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }
  // Keeps the folder for the user.
  void keep() { kept_ = true; }

 private:
  fs::path path_;
  bool kept_ = false;
};

// Measures how many cores this process's children keep busy, from now on.
class BusyCores {
 public:
  double so_far() const {
    const std::chrono::duration<double> elapsed = Clock::now() - start_;
    return (seconds_of_children() - before_) / elapsed.count();
  }

 private:
  static double seconds_of_children() {
    rusage usage{};
    ::getrusage(RUSAGE_CHILDREN, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) +
             static_cast<double>(time.tv_usec) / 1e6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }

  const Clock::time_point start_ = Clock::now();
  const double before_ = seconds_of_children();
};

// Measures how many of this host's GPUs are busy while a job trains. It queries
// the driver at most once per second.
class BusyGpus {
 public:
  void look() {
    if (!pause_.expired()) return;
    pause_ = Deadline(kPause);
    double busy = 0;
    bool is_known = false;
    for (const GpuState& gpu : look_at_gpus().gpus)
      if (gpu.busy_percent) {
        busy += *gpu.busy_percent / 100.0;
        is_known = true;
      }
    if (!is_known) return;
    ++looks_;
    mean_ += (busy - mean_) / looks_;
  }

  std::optional<double> so_far() const {
    return looks_ > 0 ? std::optional(mean_) : std::nullopt;
  }

 private:
  static constexpr std::chrono::seconds kPause{1};

  Deadline pause_{Clock::duration::zero()};
  int looks_ = 0;
  double mean_ = 0;
};

// The results of the epochs after the first, if any.
class EpochTimes {
 public:
  void take(const ProgressRecord& record) {
    const auto* epoch = std::get_if<EpochRecord>(&record);
    if (epoch == nullptr || !epoch->seconds || !epoch->images_per_second)
      return;
    if (epoch->epoch == 2) count_ = 0;
    const int epochs = ++count_;
    seconds_ += (*epoch->seconds - seconds_) / epochs;
    speed_ += (*epoch->images_per_second - speed_) / epochs;
  }

  ScaleRun run(const BusyCores& cores, const BusyGpus& gpus) const {
    if (count_ == 0) throw Error("the job succeeded, but reported no epoch");
    return {.images_per_second = speed_,
            .epoch_seconds = seconds_,
            .cores_busy = cores.so_far(),
            .gpus_busy = gpus.so_far()};
  }

 private:
  int count_ = 0;
  double seconds_ = 0;  // means
  double speed_ = 0;
};

// From /proc/cpuinfo on x86; "" elsewhere.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const std::size_t colon = line.find(": "); colon != line.npos)
        return line.substr(colon + 2);
  return "";
}

// The job's description, with the batch size that stays the same.
std::string describe(const TrainOptions& job,
                     const std::vector<std::string>& arguments) {
  const bool weak = std::ranges::any_of(arguments, [](const auto& word) {
    return word.starts_with("--batch-size");
  });
  return fmt::format("{} on {}, {}", job.model, job.dataset,
                     weak ? fmt::format("batch {} per rank", *job.batch_size)
                          : fmt::format("global batch {}", job.global_batch));
}

class Scaling {
 public:
  Scaling(const ScaleRequest& request, const EnvironmentLookup& lookup)
      : request_(request), lookup_(lookup) {
    report_.cores = request.cores;
    report_.machine = processor_name();
    report_.layouts = options().layouts;
    report_.series.push_back({.name = "Lockstep", .rows = {}});
    if (!options().against.empty())
      report_.series.push_back({.name = options().against, .rows = {}});
    for (const ScaleLayout& layout : layouts_of(options(), request.cores))
      add(layout);
    if (jobs_.empty()) std::rethrow_exception(why_not_);
  }

  // Runs all jobs in turn, repeatedly, so a disturbance of the machine affects
  // all of them.
  void run() {
    for (int repeat = 1; repeat <= options().repeats; ++repeat)
      for (std::size_t i = 0; i < jobs_.size(); ++i) {
        take(0, i, repeat, run_ours(jobs_[i]));
        if (!options().against.empty())
          take(1, i, repeat, run_theirs(report_.series[1].rows[i].ranks));
      }
  }

  // The report so far; without a series if no job has run.
  ScaleReport report() const {
    ScaleReport report = report_;
    for (ScaleSeries& series : report.series)
      std::erase_if(series.rows,
                    [](const ScaleRow& row) { return row.runs.empty(); });
    std::erase_if(report.series, [](const ScaleSeries& series) {
      return series.rows.empty();
    });
    return report;
  }

 private:
  const ScaleOptions& options() const { return request_.options; }
  fs::path model() const { return scratch_.path() / "model.safetensors"; }

  // Skips a layout over whose ranks the batch cannot be divided.
  void add(const ScaleLayout& layout) {
    try {
      jobs_.push_back(
          scaled_job(request_.job, layout, model(), request_.cores));
    } catch (const InvalidArgument& error) {
      if (!options().layouts) throw;
      why_not_ = std::current_exception();
      fmt::print(stderr, "scale: {} x {} is left out: {}\n", layout.ranks,
                 layout.threads, error.what());
      return;
    }
    const TrainOptions& job = jobs_.back().options;
    report_.job = describe(job, request_.job);
    report_.series[0].rows.push_back({.ranks = layout.ranks,
                                      .threads = threads_of(job),
                                      .global_batch = job.global_batch,
                                      .batch_per_rank = job.batch_size,
                                      .runs = {}});
    if (!options().against.empty())
      report_.series[1].rows.push_back({.ranks = layout.ranks, .runs = {}});
  }

  // The same choice as in run_training().
  std::optional<int> threads_of(const TrainOptions& job) const {
    if (job.threads || lookup_("OMP_NUM_THREADS")) return job.threads;
    return default_threads(request_.cores, job.ranks.value() / job.replicas);
  }

  void take(std::size_t series, std::size_t row, int repeat, ScaleRun run) {
    const int ranks = report_.series[series].rows[row].ranks;
    fmt::print(stderr,
               "scale: {} on {} rank{}, run {} of {}: {:.0f} images/s\n",
               report_.series[series].name, ranks, ranks == 1 ? "" : "s",
               repeat, options().repeats, run.images_per_second);
    report_.series[series].rows[row].runs.push_back(run);
  }

  ScaleRun run_ours(const TrainRequest& job) {
    EpochTimes epochs;
    BusyGpus gpus;
    const BusyCores cores;
    const int code =
        run_training(job, lookup_,
                     {.out = STDERR_FILENO,
                      .on_progress = [&](const ProgressRecord& record) {
                        epochs.take(record);
                        if (std::holds_alternative<StepRecord>(record))
                          gpus.look();
                      }});
    if (code != 0) throw JobFailed{code};
    return epochs.run(cores, gpus);
  }

  ScaleRun run_theirs(int ranks) {
    LaunchOptions launch;
    launch.command = {"/bin/sh", "-c", with_ranks(options().against, ranks)};
    launch.log_directory = scratch_.path() / "against";
    launch.binding = Binding::kNone;
    launch.job.workers_are_ranks = false;
    // The variable from which torchrun takes its default for --nproc-per-node.
    launch.environment.push_back(fmt::format("PET_NPROC_PER_NODE={}", ranks));
    const BusyCores cores;
    const int code = run_job(launch, lookup_, {.out = STDERR_FILENO});
    if (code != 0) {
      scratch_.keep();  // its failure report names files in it
      throw JobFailed{code};
    }
    constexpr std::size_t kMostBytes = std::size_t{1} << 28;
    const auto speed = find_throughput(
        read_text_file(fs::path(launch.log_directory) / "rank-0.log",
                       kMostBytes),
        options().against_pattern);
    if (!speed)
      throw Error(fmt::format(
          "`{}` printed no line with its images per second\n"
          "  next:    make it print them, as in \"1234.5 images/s\", or "
          "describe its lines with --against-pattern",
          launch.command.back()));
    return {.images_per_second = *speed, .cores_busy = cores.so_far()};
  }

  const ScaleRequest& request_;
  const EnvironmentLookup& lookup_;
  ScratchFolder scratch_;
  std::vector<TrainRequest> jobs_;  // one per row
  std::exception_ptr why_not_;      // why a layout has no job
  ScaleReport report_;
};

// Runs no job when the report cannot be written.
void check_report(const fs::path& prefix) {
  const fs::path folder =
      prefix.has_parent_path() ? prefix.parent_path() : fs::path(".");
  std::error_code unknown;
  if (!prefix.has_filename() || !fs::is_directory(folder, unknown) ||
      ::access(folder.c_str(), W_OK) != 0)
    throw InvalidArgument(
        fmt::format("--report {} cannot be written: it must be a prefix of "
                    "file names in an existing, writable folder",
                    prefix.string()));
}

}  // namespace

int run_scale(const ScaleRequest& request, const EnvironmentLookup& lookup) {
  const ScaleOptions& options = request.options;
  if (const auto place = read_rank_environment(lookup);
      place.launcher != StartedBy::kNone)
    throw InvalidArgument(fmt::format(
        "lockstep scale starts ranks of its own, 1, 2, 4 and so on, but "
        "the environment makes this process a rank that {} started\n"
        "  next:    run lockstep scale without a launcher, or unset the rank "
        "environment (RANK, WORLD_SIZE)",
        name_of(place.launcher)));
  std::string gnuplot;
  if (!options.report.empty()) {
    check_report(options.report);
    gnuplot = require_gnuplot(lookup, "--report");
  }
  Scaling scaling(request, lookup);
  int code = 0;
  try {
    scaling.run();
  } catch (const JobFailed& failed) {
    code = failed.exit_code;
  }
  const ScaleReport report = scaling.report();
  if (report.series.empty()) return code;
  const int printed =
      print_report(options.json ? to_json(report) : to_text(report));
  if (!options.report.empty()) {
    replace_text_file(options.report + ".json", to_json(report));
    replace_text_file(options.report + ".md", to_markdown(report));
    draw(report, options.report, gnuplot);
  }
  return code == 0 ? printed : code;
}

}  // namespace lockstep
