#include "apps/bench/bench_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "apps/job/flags.h"
#include "apps/job/launch_flags.h"
#include "lockstep/base/error.h"
#include "src/base/suggest.h"
#include "src/comm/group/registry.h"

namespace lockstep {
namespace {

using Names = std::vector<std::string_view>;

// The units of sizes, each with its power of two.
struct Unit {
  std::string_view name;
  int shift;
};
constexpr std::array<Unit, 8> kUnits{{{"", 0},
                                      {"B", 0},
                                      {"K", 10},
                                      {"KiB", 10},
                                      {"M", 20},
                                      {"MiB", 20},
                                      {"G", 30},
                                      {"GiB", 30}}};
// Far more than a benchmark needs, and small enough to multiply.
constexpr std::size_t kMostMessageBytes = std::size_t{1} << 40;
constexpr std::array<std::string_view, 2> kMemories{"shared", "plain"};

Names known_backends() {
  const auto names = backend_names();
  Names known{"auto", "all", "nccl"};
  known.insert(known.end(), names.begin(), names.end());
  return known;
}

template <class Values>
Names names_of(const Values& values) {
  Names names;
  for (const auto value : values) names.push_back(name_of(value));
  return names;
}

template <class Values>
auto value_named(const std::string& name, const Values& values) {
  for (const auto value : values)
    if (name_of(value) == name) return value;
  throw InternalError("a name that was checked is unknown: " + name);
}

void add_what_flags(CLI::App& command, BenchOptions& options) {
  command.add_option("COLLECTIVE", options.collective)
      ->description(fmt::format("{}", fmt::join(kCollectiveNames, ", ")))
      ->check(one_of("collective", kCollectiveNames))
      ->option_text("collective");
  add_device_flags(command, options.devices, "hold their buffers on");
  command
      .add_option("--backend", options.backend,
                  "auto, a backend's name, or all: compares those that this "
                  "machine has; on GPUs nccl alone")
      ->check(one_of("backend", known_backends()))
      ->capture_default_str();
  command
      .add_option(
          "--bytes", options.bytes,
          "Bytes of a rank's longer buffer: 4..100M, 1M or 4,1K,25M; K, M "
          "and G are powers of 1024")
      ->capture_default_str()
      ->type_name("SIZES");
  command
      .add_option("--step-factor", options.step_factor,
                  "Factor from one size of a range to the next")
      ->check(whole_number(2))
      ->capture_default_str();
  command.add_option("--dtype", options.dtype, "The type of the elements")
      ->check(one_of("data type", names_of(kAllDataTypes)))
      ->capture_default_str();
  command
      .add_option("--op", options.op,
                  "The reduction of all_reduce, reduce and reduce_scatter")
      ->check(one_of("reduction", names_of(kAllReductions)))
      ->capture_default_str();
}

void add_how_flags(CLI::App& command, BenchOptions& options) {
  command
      .add_option("-n,--ranks,--nproc-per-node", options.ranks,
                  "Processes [the largest power of two up to the number of "
                  "cores and 8, at least 2; on GPUs, one per GPU]; under a "
                  "launcher, its number")
      ->check(whole_number(1, kMostRanksOfAHost))
      ->type_name("N");
  command
      .add_option("--memory", options.memory,
                  "shared: buffers that the backend may place where peers "
                  "reach them, or that it registers with NCCL; plain: ordinary "
                  "memory of the device [shared]")
      ->check(one_of("memory", kMemories));
  command
      .add_option("--iters", options.iterations,
                  "Rounds per size [as many as fit into 0.2 s, 10 to "
                  "5000]")
      ->check(whole_number(1))
      ->type_name("N");
}

void add_result_flags(CLI::App& command, BenchOptions& options) {
  command.add_flag("--json", options.json,
                   "Print one JSON document instead of a table");
  command
      .add_option("--plot", options.plot,
                  "Draw time against bytes into this file, .svg or .png; "
                  "needs gnuplot")
      ->type_name("FILE");
  command
      .add_option(
          "-o,--output", options.output,
          "File for the table or the JSON; -: standard output, the default")
      ->type_name("FILE");
}

// The nearest unit other than the typed one.
std::string suggest_unit(std::string_view unit) {
  // Likely intentions: units of 1000 bytes are not in use here.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6>
      kLikely{{{"k", "K"},
               {"KB", "KiB"},
               {"kB", "KiB"},
               {"MB", "MiB"},
               {"m", "M"},
               {"GB", "GiB"}}};
  for (const auto& [typed, meant] : kLikely)
    if (typed == unit) return std::string(meant);
  Names known;
  for (const Unit& each : kUnits)
    if (!each.name.empty()) known.push_back(each.name);
  return nearest_name(unit, known);
}

[[noreturn]] void refuse_size(std::string_view text, std::string_view why) {
  throw InvalidArgument(
      fmt::format("\"{}\" is not a number of bytes: {}; write 64, 4K, 25M, 1G "
                  "(powers of 1024)",
                  text, why));
}

const Unit& unit_named(std::string_view name, std::string_view text) {
  for (const Unit& unit : kUnits)
    if (unit.name == name) return unit;
  const std::string nearest = suggest_unit(name);
  refuse_size(
      text, fmt::format("unknown unit \"{}\"{}", name,
                        nearest.empty()
                            ? ""
                            : fmt::format(", did you mean \"{}\"?", nearest)));
}

std::vector<std::size_t> parse_range(std::string_view text, std::size_t dots,
                                     int factor) {
  const std::size_t first = parse_bytes(text.substr(0, dots));
  const std::size_t last = parse_bytes(text.substr(dots + 2));
  if (first > last)
    throw InvalidArgument(fmt::format(
        "\"{}\" begins above its end; write the smaller size first", text));
  std::vector<std::size_t> sizes;
  const auto step = static_cast<std::size_t>(factor);
  for (std::size_t size = first; size < last; size *= step)
    sizes.push_back(size);
  sizes.push_back(last);
  return sizes;
}

void check_device(const BenchOptions& options) {
  if (options.devices.device == "cpu") {
    if (options.backend == "nccl")
      throw InvalidArgument(
          "--backend nccl uses GPU memory only: add --device cuda");
    return;
  }
  if (options.backend != "auto" && options.backend != "nccl")
    throw InvalidArgument(
        fmt::format("--backend {} uses the CPU's memory only: leave --backend "
                    "out with --device {}, which is nccl's",
                    options.backend, options.devices.device));
  if (options.wanted.collective == BenchCollective::kBarrier)
    throw InvalidArgument(
        fmt::format("barrier is the CPU's on any device: leave out --device "
                    "{} and --gpus",
                    options.devices.device));
}

void choose_ranks(BenchOptions& options, const RankPlace& place) {
  options.ranks = settle_ranks(options.ranks, place,
                               std::max(2, default_ranks(place.cores)));
  if (options.collective == "send_recv" && *options.ranks < 2)
    throw InvalidArgument(
        "send_recv needs two ranks; add --ranks 2 or start more");
}

void settle_reduction(BenchOptions& options) {
  CollectiveCase& wanted = options.wanted;
  wanted.type = value_named(options.dtype, kAllDataTypes);
  wanted.op = value_named(options.op, kAllReductions);
  if (!reduces(wanted.collective) && options.op != "sum")
    throw InvalidArgument(
        fmt::format("--op is {}, but {} reduces nothing; leave --op out",
                    options.op, options.collective));
  if (reduces(wanted.collective) && !is_defined(wanted.op, wanted.type))
    throw InvalidArgument(
        fmt::format("--op {} is not defined on {}; take another of the two",
                    options.op, options.dtype));
}

}  // namespace

void add_bench_options(CLI::App& command, BenchOptions& options) {
  add_what_flags(command, options);
  add_how_flags(command, options);
  add_result_flags(command, options);
}

void complete_bench_options(BenchOptions& options, const RankPlace& place) {
  if (options.collective.empty())
    throw InvalidArgument(
        fmt::format("bench needs a collective: lockstep bench all_reduce. "
                    "Known: {}",
                    fmt::join(kCollectiveNames, ", ")));
  if (options.output == "-") options.output.clear();
  options.wanted.collective = find_collective(options.collective).value();
  options.wanted.memory = options.memory == "plain" ? Engine::Memory::kPlain
                                                    : Engine::Memory::kShared;
  settle_reduction(options);
  complete_device_flags(options.devices, options.ranks, place);
  check_device(options);
  choose_ranks(options, place);
  if (options.wanted.collective == BenchCollective::kBarrier) {
    options.sizes = {0};
    if (!options.plot.empty())
      throw InvalidArgument(
          "--plot draws time against bytes, and barrier has none; leave it "
          "out");
    return;
  }
  try {
    options.sizes = parse_sizes(options.bytes, options.step_factor);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("--bytes: {}", error.what()));
  }
}

BenchOptions parse_bench_options(std::span<const char* const> arguments,
                                 const RankPlace& place) {
  BenchOptions options;
  parse_worker_flags("lockstep bench", arguments, [&](CLI::App& command) {
    add_bench_options(command, options);
  });
  complete_bench_options(options, place);
  return options;
}

std::size_t parse_bytes(std::string_view text) {
  std::size_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc::result_out_of_range || number > kMostMessageBytes)
    refuse_size(text, "that is too many");
  if (error != std::errc())
    refuse_size(text, "it does not begin with a whole number");
  const std::string_view name(stop, static_cast<std::size_t>(end - stop));
  const Unit& unit = unit_named(name, text);
  if (number == 0) refuse_size(text, "it must be at least 1");
  if (number > (kMostMessageBytes >> unit.shift))
    refuse_size(text, "that is too many");
  return number << unit.shift;
}

std::vector<std::size_t> parse_sizes(std::string_view text, int factor) {
  const std::size_t dots = text.find("..");
  if (dots != std::string_view::npos) return parse_range(text, dots, factor);
  std::vector<std::size_t> sizes;
  for (;;) {
    const std::size_t comma = text.find(',');
    sizes.push_back(parse_bytes(text.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

std::string describe_bytes(std::size_t bytes) {
  constexpr std::array<std::pair<std::string_view, int>, 3> kNamed{
      {{"GiB", 30}, {"MiB", 20}, {"KiB", 10}}};
  for (const auto& [name, shift] : kNamed) {
    const std::size_t unit = std::size_t{1} << shift;
    if (bytes >= unit && bytes % unit == 0)
      return fmt::format("{} {}", bytes >> shift, name);
  }
  return fmt::format("{} B", bytes);
}

}  // namespace lockstep
