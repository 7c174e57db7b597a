#include "apps/job/device_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "apps/job/flags.h"
#include "apps/options/training_options.h"
#include "lockstep/base/error.h"
#include "src/base/number_in.h"
#include "src/base/process_environment.h"
#include "src/base/settings.h"
#include "src/launch/launcher/launcher.h"
#include "src/launch/worker/gpu_inventory.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 2> kDevices{"cpu", "cuda"};
constexpr std::string_view kVisible = "CUDA_VISIBLE_DEVICES";

std::optional<int> number(std::string_view text) {
  const auto value = number_in<int>(text);
  return value && *value >= 0 ? value : std::nullopt;
}

bool is_list(const std::string& gpus) {
  return gpus.find(',') != std::string::npos;
}

[[noreturn]] void refuse_gpus(const std::string& gpus) {
  throw InvalidArgument(
      fmt::format("--gpus {} is neither a number of GPUs nor a list of "
                  "distinct ones, like 0,2",
                  gpus));
}

std::vector<int> indices_of(const std::string& gpus) {
  std::vector<int> indices;
  for (const std::string& part : entries_of(gpus)) {
    const auto index = number(part);
    if (!index || std::ranges::find(indices, *index) != indices.end())
      refuse_gpus(gpus);
    indices.push_back(*index);
  }
  return indices;
}

// The number of GPUs that `--gpus` names.
int count_of(const std::string& gpus) {
  if (is_list(gpus)) return static_cast<int>(indices_of(gpus).size());
  const auto count = number(gpus);
  if (!count || *count < 1) refuse_gpus(gpus);
  return *count;
}

}  // namespace

void add_device_flags(CLI::App& command, DeviceFlags& flags,
                      const std::string& use) {
  command
      .add_option("--device", flags.device,
                  "What ranks " + use + ": cpu, or cuda, one GPU per rank")
      ->check(one_of("device", kDevices))
      ->capture_default_str();
  command
      .add_option("--gpus", flags.gpus,
                  "Number of GPUs of this host, or a list of them like 0,2: "
                  "one rank per GPU, with --device cuda")
      ->type_name("N|LIST");
}

void check_compute_flags(const ComputeOptions& options,
                         const DeviceFlags& devices) {
  if (devices.device == "cpu" && options.tf32)
    throw InvalidArgument(
        "--tf32 is for GPUs: add --device cuda, or leave it out");
}

void complete_device_flags(DeviceFlags& flags, std::optional<int>& ranks,
                           const RankPlace& place) {
  if (!flags.gpus.empty()) {
    flags.device = "cuda";
    const int count = count_of(flags.gpus);
    if (ranks.value_or(count) != count)
      throw InvalidArgument(fmt::format(
          "--gpus {} is for {} ranks, and --ranks is {}: leave out one of the "
          "two",
          flags.gpus, count, *ranks));
    if (!place.world_size) ranks = count;
  }
  if (flags.device == "cpu" || ranks || place.world_size) return;
  const int gpus = place.gpus ? place.gpus() : 0;
  if (gpus == 0)
    throw InvalidArgument(
        "--device cuda: no GPU is visible here; `lockstep doctor` says why, or "
        "give the number of ranks with --ranks");
  ranks = gpus;
}

std::optional<std::string> visible_devices(const DeviceFlags& flags,
                                           const EnvironmentLookup& lookup) {
  if (!is_list(flags.gpus)) return std::nullopt;
  const auto before = lookup(std::string(kVisible));
  if (!before) return flags.gpus;
  const auto devices = entries_of(*before);
  std::vector<std::string> chosen;
  for (const int index : indices_of(flags.gpus)) {
    if (index >= std::ssize(devices))
      throw InvalidArgument(
          fmt::format("--gpus {} counts among {}={}, which has {}", flags.gpus,
                      kVisible, *before, devices.size()));
    chosen.push_back(devices[static_cast<std::size_t>(index)]);
  }
  return fmt::format("{}", fmt::join(chosen, ","));
}

void apply(const DeviceFlags& flags, const EnvironmentLookup& lookup,
           LaunchOptions& options) {
  const auto devices = visible_devices(flags, lookup);
  if (!devices) return;
  const std::string name = std::string(kVisible) + "=";
  std::erase_if(options.environment, [&](const std::string& variable) {
    return variable.starts_with(name);
  });
  options.environment.push_back(name + *devices);
}

int gpu_of_rank(const Settings& settings) {
  return settings.gpu_of_rank(
      [] { return visible_gpus(environment_variable); });
}

std::string device_of_rank(const DeviceFlags& flags, int gpu) {
  if (flags.device == "cpu") return flags.device;
  return fmt::format("{}:{}", flags.device, gpu);
}

}  // namespace lockstep
