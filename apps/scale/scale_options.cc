#include "apps/scale/scale_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <regex>
#include <sstream>

#include "apps/job/flags.h"
#include "lockstep/base/error.h"
#include "src/base/process_environment.h"

namespace lockstep {
namespace {

// Enough to omit the first epoch, which warms up memory.
constexpr int kEpochs = 2;

std::regex compiled(const std::string& pattern) {
  try {
    std::regex regex(pattern, std::regex::ECMAScript | std::regex::icase);
    if (regex.mark_count() == 1) return regex;
  } catch (const std::regex_error&) {
    throw InvalidArgument(
        fmt::format("--against-pattern \"{}\" is not a regular expression; the "
                    "default is {}",
                    pattern, kThroughputPattern));
  }
  throw InvalidArgument(
      fmt::format("--against-pattern \"{}\" must have one group, around the "
                  "number of images per second: (…)",
                  pattern));
}

// Matches "1,234.5" but no part of "812,5", which means 812.5.
std::optional<double> throughput_in(std::string text) {
  static const std::regex plain(R"([0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?|[^,]*)");
  if (!std::regex_match(text, plain)) return std::nullopt;
  std::erase(text, ',');
  const double value = std::strtod(text.c_str(), nullptr);
  if (!(value > 0 && std::isfinite(value))) return std::nullopt;
  return value;
}

// Flags that are useless for a measurement, or that would change a repeated
// job.
void refuse_other_purposes(const TrainRequest& request) {
  const TrainOptions& job = request.options;
  const char* flag = job.ranks                         ? "-n"
                     : !request.launch.log_dir.empty() ? "--log-dir"
                     : !job.output.empty()             ? "--output"
                     : !job.checkpoint_dir.empty()     ? "--checkpoint-dir"
                     : !job.resume.empty()             ? "--resume"
                                                       : nullptr;
  if (flag != nullptr)
    throw InvalidArgument(fmt::format(
        "{} is not for scale, which trains for the figures alone: leave it out",
        flag));
}

void parse_job(const std::vector<std::string>& arguments, TrainRequest& job) {
  std::vector<const char*> words;
  for (const std::string& word : arguments) words.push_back(word.c_str());
  job.launch = parse_worker_flags(
      "lockstep scale", words,
      [&](CLI::App& command) { add_train_options(command, job.options); });
}

}  // namespace

const char* const kThroughputPattern =
    R"((?:^|[^\w.,])([0-9][0-9,]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*)"
    R"((?:images?|imgs?|samples?|examples?)\s*(?:/|per)\s*)"
    R"(s(?:ec(?:onds?)?)?\b(?!\s*(?:/|per\b)))";

void add_scale_options(CLI::App& command, ScaleOptions& options) {
  command.footer(
      "All other flags are the job's, as `lockstep train --help` lists them. "
      "With\n--batch-size a rank's batch stays the same (weak scaling), "
      "otherwise the global\nbatch does (strong scaling).");
  command
      .add_option_function<std::string>(
          "-n,--ranks,--nproc-per-node",
          [&options](const std::string& list) {
            options.ranks = numbers_in<int>(list);
          },
          "World sizes [1,2,4,... up to the number of cores and 8]; "
          "each rank has the threads that the largest allows")
      ->check(list_of(whole_number(1, kMostRanksOfAHost)))
      ->type_name("N,N,...");
  command.add_flag("--layouts", options.layouts,
                   "Divide all cores into ranks and threads in every way, and "
                   "name the fastest for this model");
  command
      .add_option(
          "--repeats", options.repeats,
          "Runs on each, in turn; the report gives medians and the spread")
      ->check(whole_number(1))
      ->capture_default_str();
  command
      .add_option("--report", options.report,
                  "Write PREFIX.json, PREFIX.md, and the drawings PREFIX.svg "
                  "and PREFIX.png (gnuplot draws them)")
      ->type_name("PREFIX");
  command.add_flag("--json", options.json, "Print it as JSON, for programs");
  command
      .add_option("--against", options.against,
                  "A shell command to compare with, such as 'torchrun "
                  "--nproc-per-node {ranks} train.py'; it must print its "
                  "images per second")
      ->type_name("COMMAND");
  command
      .add_option("--against-pattern", options.against_pattern,
                  "A regular expression that captures them in a line of that "
                  "command [\"1,234.5 images/s\" and the like]")
      ->type_name("REGEX");
}

void complete_scale_options(ScaleOptions& options, int cores) {
  if (options.layouts && !(options.ranks.empty() && options.against.empty()))
    throw InvalidArgument(
        "--layouts chooses the numbers of ranks itself, and compares with "
        "nothing: leave out --ranks and --against");
  for (int ranks = 1; options.layouts && ranks <= cores; ++ranks)
    if (cores % ranks == 0) options.ranks.push_back(ranks);
  if (options.ranks.empty())
    for (int ranks = 1; ranks <= default_ranks(cores); ranks *= 2)
      options.ranks.push_back(ranks);
  std::ranges::sort(options.ranks);
  const auto doubled = std::ranges::adjacent_find(options.ranks);
  if (doubled != options.ranks.end())
    throw InvalidArgument(
        fmt::format("--ranks names {} twice; --repeats says how often each is "
                    "run",
                    *doubled));
  if (options.against.empty()) {
    if (!options.against_pattern.empty())
      throw InvalidArgument(
          "--against-pattern needs --against, the command whose output it is "
          "for");
    return;
  }
  if (options.against_pattern.empty())
    options.against_pattern = kThroughputPattern;
  compiled(options.against_pattern);
  const bool varies = with_ranks(options.against, 0) != options.against ||
                      options.against.find("torchrun") != std::string::npos;
  if (!varies)
    throw InvalidArgument(
        "--against must say where the number of ranks goes: write {ranks}, as "
        "in 'torchrun --nproc-per-node {ranks} train.py'");
}

std::vector<ScaleLayout> layouts_of(const ScaleOptions& options, int cores) {
  const int most = std::ranges::max(options.ranks);
  std::vector<ScaleLayout> layouts;
  for (const int ranks : options.ranks) {
    const int sharers = options.layouts ? ranks : most;
    layouts.push_back({.ranks = ranks,
                       .threads = std::max(1, cores / sharers),
                       .threads_vary = options.layouts});
  }
  return layouts;
}

TrainRequest scaled_job(std::vector<std::string> arguments,
                        const ScaleLayout& layout,
                        const std::filesystem::path& model, int cores) {
  TrainRequest job;
  parse_job(arguments, job);
  refuse_other_purposes(job);
  if (!job.options.given.contains("--epochs")) {
    job.options.epochs = kEpochs;
    arguments.push_back(fmt::format("--epochs={}", kEpochs));
  }
  if (layout.threads_vary && job.options.threads)
    throw InvalidArgument(
        "--layouts chooses the threads of each rank: leave --threads out");
  if (!job.options.threads &&
      (layout.threads_vary || !environment_variable("OMP_NUM_THREADS"))) {
    job.options.threads = layout.threads;
    arguments.push_back(fmt::format("--threads={}", layout.threads));
  }
  job.options.ranks = layout.ranks;
  job.options.output = model;
  arguments.push_back(fmt::format("--ranks={}", layout.ranks));
  arguments.push_back("--output=" + model.string());
  arguments.push_back("--no-hints");  // the model is deleted after the run
  complete_train_options(job.options,
                         {.cores = cores, .lookup = environment_variable});
  job.arguments = std::move(arguments);
  return job;
}

std::optional<double> find_throughput(const std::string& output,
                                      const std::string& pattern) {
  const std::regex regex = compiled(pattern);
  std::optional<double> found;
  std::string text = output;
  // Progress bars are drawn in one line.
  std::ranges::replace(text, '\r', '\n');
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // The library's search recurses once per character of a line.
    constexpr std::size_t kLongest = 4096;
    if (line.size() > kLongest) continue;
    const std::sregex_iterator none;
    for (std::sregex_iterator match(line.begin(), line.end(), regex);
         match != none; ++match)
      if (const auto value = throughput_in((*match)[1])) found = value;
  }
  return found;
}

std::string with_ranks(std::string command, int ranks) {
  constexpr std::string_view kPlace = "{ranks}";
  const std::string number = std::to_string(ranks);
  for (std::size_t at = command.find(kPlace); at != std::string::npos;
       at = command.find(kPlace, at + 1)) {
    const bool is_the_shells = at > 0 && command[at - 1] == '$';
    if (!is_the_shells) command.replace(at, kPlace.size(), number);
  }
  return command;
}

}  // namespace lockstep
