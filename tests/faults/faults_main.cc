// Injects faults into ranks, counts those that the ranks survived as expected,
// and reports: `./dev test faults`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>

#include "faults.h"
#include "leftovers.h"
#include "src/base/settings.h"
#include "src/comm/wire/transport_plugin.h"

namespace lockstep {
namespace {

struct Plan {
  int kills = 200;
  int stops = 50;
  int pairs = count_pairs();
  int stores = 20;
  int reuses = 1000;
  int laden = 5;
  std::size_t laden_bytes = std::size_t{4} << 30;
  std::vector<std::string> backends{"shm", "gloo", "hybrid"};
  unsigned seed = std::random_device{}();

  static Plan brief() {
    return {.kills = 10,
            .stops = 4,
            .pairs = 6,
            .stores = 2,
            .reuses = 20,
            .laden = 1,
            .laden_bytes = std::size_t{256} << 20};
  }
};

struct Row {
  std::string fault;
  std::string backend;
  std::size_t injected = 0;
  std::size_t survived = 0;
  std::vector<double> milliseconds{};
  std::size_t checked = 0;
};

void print_row(const Row& row) {
  std::vector<double> times = row.milliseconds;
  std::ranges::sort(times);
  const std::string seen =
      times.empty() ? "-"
                    : fmt::format("{:>9.1f} {:>9.1f}", times[times.size() / 2],
                                  times.back());
  fmt::print("{:<30} {:<8} {:>8} {:>8} {:>8} {}\n", row.fault, row.backend,
             row.injected, row.survived, row.checked, seen);
}

// Runs a plan over one backend after the other.
class Campaign {
 public:
  Campaign(const Plan& plan, Leftovers& leftovers)
      : plan_(plan), leftovers_(leftovers) {}

  void run(const std::string& backend) {
    using namespace std::placeholders;
    repeat({"kill -9 of a rank", backend}, plan_.kills, inject_kill);
    repeat({"kill -9 of the store's rank", backend}, plan_.stores,
           inject_kill_of_store);
    repeat({"SIGSTOP of a rank", backend}, plan_.stops, inject_stop);
    reuse(backend);
    repeat({"SIGSTOP, much memory in use", backend}, plan_.laden,
           [this](const Injection& injection) {
             return inject_stop_of_laden(injection, plan_.laden_bytes);
           });
    mismatch(backend);
    repeat({"the store dies", backend}, plan_.stores, inject_store_death);
    repeat({"the store dies, in forming", backend}, plan_.stores,
           inject_store_death_in_forming);
  }

  // Prints the table; returns whether the ranks survived all faults.
  bool report() const {
    fmt::print("\n{:<30} {:<8} {:>8} {:>8} {:>8} {:>9} {:>9}\n", "fault",
               "backend", "injected", "survived", "checked", "p50 ms",
               "max ms");
    std::size_t checked = 0;
    for (const Row& row : rows_) {
      print_row(row);
      checked += row.checked;
    }
    fmt::print(
        "The results of {} operations that ended without an error were "
        "checked.\n",
        checked);
    return std::ranges::all_of(
        rows_, [](const Row& row) { return row.survived == row.injected; });
  }

 private:
  void repeat(Row row, int times,
              const std::function<Outcome(const Injection&)>& inject) {
    for (int i = 0; i < times; ++i) {
      Outcome outcome = inject({.backend = row.backend, .seed = seed_++});
      ++row.injected;
      row.survived += settle(row, outcome);
    }
    add(std::move(row));
  }

  void reuse(const std::string& backend) {
    constexpr int kInOneJob = 20;
    Row row{"SIGSTOP, memory used again", backend};
    for (int left = plan_.reuses; left > 0; left -= kInOneJob) {
      const int rounds = std::min(left, kInOneJob);
      Outcome outcome =
          inject_reuse({.backend = backend, .seed = seed_++}, rounds);
      row.injected += static_cast<std::size_t>(rounds);
      if (settle(row, outcome))
        row.survived += static_cast<std::size_t>(rounds);
    }
    add(std::move(row));
  }

  void mismatch(const std::string& backend) {
    constexpr std::ptrdiff_t kInOneJob = 11;
    Row row{"two different collectives", backend};
    std::vector<int> pairs(static_cast<std::size_t>(count_pairs()));
    std::iota(pairs.begin(), pairs.end(), 0);
    std::ranges::shuffle(pairs, std::mt19937(plan_.seed));
    pairs.resize(std::min(pairs.size(), static_cast<std::size_t>(plan_.pairs)));
    for (auto at = pairs.begin(); at != pairs.end();) {
      const auto end = at + std::min(kInOneJob, pairs.end() - at);
      std::size_t survived = 0;
      Outcome outcome = inject_mismatch({.backend = backend, .seed = seed_++},
                                        {at, end}, survived);
      row.injected += static_cast<std::size_t>(end - at);
      if (settle(row, outcome)) row.survived += survived;
      at = end;
    }
    add(std::move(row));
  }

  // Whether there are no complaints and no leftovers.
  bool settle(Row& row, Outcome& outcome) {
    const std::string left = leftovers_.look();
    if (!left.empty()) outcome.complaints += "left behind: " + left + "\n";
    row.milliseconds.insert(row.milliseconds.end(),
                            outcome.milliseconds.begin(),
                            outcome.milliseconds.end());
    row.checked += outcome.checked;
    if (outcome.complaints.empty()) return true;
    fmt::print("FAILED: {}: {}", row.fault, outcome.complaints);
    return false;
  }

  void add(Row row) {
    if (row.injected == 0) return;
    print_row(row);
    std::fflush(stdout);
    rows_.push_back(std::move(row));
  }

  const Plan plan_;
  Leftovers& leftovers_;
  unsigned seed_ = plan_.seed;
  std::vector<Row> rows_;
};

void add_flags(CLI::App& command, Plan& plan) {
  command.add_option("--kills", plan.kills, "kill -9 of a random rank")
      ->envname("LOCKSTEP_FAULT_KILLS")
      ->capture_default_str();
  command.add_option("--stops", plan.stops, "SIGSTOP of a random rank")
      ->envname("LOCKSTEP_FAULT_STOPS")
      ->capture_default_str();
  command
      .add_option("--pairs", plan.pairs,
                  "How many of the pairs of different collectives")
      ->envname("LOCKSTEP_FAULT_PAIRS")
      ->capture_default_str();
  command
      .add_option("--stores", plan.stores, "Deaths of the store, of each kind")
      ->envname("LOCKSTEP_FAULT_STORES")
      ->capture_default_str();
  command
      .add_option("--reuses", plan.reuses,
                  "SIGSTOPs after which memory is used again")
      ->envname("LOCKSTEP_FAULT_REUSES")
      ->capture_default_str();
  command
      .add_option("--laden", plan.laden,
                  "SIGSTOPs while a rank has much memory in use")
      ->envname("LOCKSTEP_FAULT_LADEN")
      ->capture_default_str();
  command.add_option("--laden-bytes", plan.laden_bytes, "How much")
      ->capture_default_str();
  command.add_option("--backends", plan.backends, "What they run on")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--seed", plan.seed, "Of the first fault; one more each");
}

bool can_run(const std::string& backend) {
  Settings settings;
  settings.plugin_path = LOCKSTEP_TEST_PLUGINS;
  const std::string& engine = backend == "hybrid" ? settings.wire : backend;
  for (const PluginStatus& plugin : plugin_status(settings))
    if (plugin.name == engine && !plugin.found) {
      fmt::print("skipped: {}: {}\n", backend, plugin.detail);
      return false;
    }
  return true;
}

int run(int argc, char** argv) {
  bool brief = argc > 1 && std::string_view(argv[1]) == "--brief";
  Plan plan = brief ? Plan::brief() : Plan();
  CLI::App command("Injects faults into ranks, and counts what is survived.");
  command.add_flag("--brief", brief,
                   "A few of each, as all tests together have it; "
                   "comes first");
  add_flags(command, plan);
  CLI11_PARSE(command, argc, argv);
  const std::string refused = isolate();
  if (!refused.empty())
    fmt::print("not looked at: ports and /dev/shm ({})\n", refused);
  Leftovers leftovers(refused.empty() ? Leftovers::Scope::kIsolated
                                      : Leftovers::Scope::kOwn);
  fmt::print("faults from seed {} on\n", plan.seed);
  std::fflush(stdout);
  Campaign campaign(plan, leftovers);
  for (const std::string& backend : plan.backends)
    if (can_run(backend)) campaign.run(backend);
  const bool fine = campaign.report();
  fmt::print("{}\n", fine ? "Every fault was survived as it must be."
                          : "FAILED: see above.");
  return fine ? 0 : 1;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::run(argc, argv); }
