#include "lockstep/tools/device_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tools/flags.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 2> kDevices{"cpu", "cuda"};

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    return std::nullopt;
  return value;
}

bool is_list(const std::string& gpus) {
  return gpus.find(',') != std::string::npos;
}

[[noreturn]] void refuse_gpus(const std::string& gpus) {
  throw InvalidArgument(
      fmt::format("--gpus {} is neither a number of GPUs nor a list of some, "
                  "each once, like 0,2",
                  gpus));
}

std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<int> indices_of(const std::string& gpus) {
  std::vector<int> indices;
  for (const std::string& part : parts_of(gpus)) {
    const auto index = number(part);
    if (!index || std::ranges::find(indices, *index) != indices.end())
      refuse_gpus(gpus);
    indices.push_back(*index);
  }
  return indices;
}

// How many `--gpus` names.
int count_of(const std::string& gpus) {
  if (is_list(gpus)) return static_cast<int>(indices_of(gpus).size());
  const auto count = number(gpus);
  if (!count || *count < 1) refuse_gpus(gpus);
  return *count;
}

}  // namespace

void add_device_flags(CLI::App& command, TrainOptions& options) {
  command
      .add_option("--device", options.device,
                  "What ranks compute on: cpu, or cuda, a GPU each")
      ->check(one_of("device", kDevices))
      ->capture_default_str();
  command
      .add_option("--gpus", options.gpus,
                  "So many GPUs of this host, or those of a list like 0,2: as "
                  "many ranks, with --device cuda")
      ->type_name("N|LIST");
}

void complete_device_flags(TrainOptions& options, const RankPlace& place) {
  if (!options.gpus.empty()) {
    options.device = "cuda";
    const int count = count_of(options.gpus);
    if (options.ranks.value_or(count) != count)
      throw InvalidArgument(fmt::format(
          "--gpus {} is for {} ranks, and --ranks is {}: leave out one of the "
          "two",
          options.gpus, count, *options.ranks));
    if (!place.world_size) options.ranks = count;
  }
  if (options.device == "cpu") return;
  if (options.strategy != "ddp" && options.strategy != "horovod")
    throw InvalidArgument(fmt::format(
        "--device {} is not for --strategy {} yet: use ddp or horovod, which "
        "have a process for each GPU",
        options.device, options.strategy));
  if (options.logical_shards)
    throw InvalidArgument(
        "--logical-shards promises bits that only the CPU keeps: leave it out "
        "with --device cuda");
  if (options.ranks || place.world_size) return;
  const int gpus = place.gpus ? place.gpus() : 0;
  if (gpus == 0)
    throw InvalidArgument(
        "--device cuda: no GPU can be seen here; `lockstep doctor` says why, "
        "or say how many ranks there are with --ranks");
  options.ranks = gpus;
}

std::optional<std::string> visible_devices(const TrainOptions& options,
                                           const EnvironmentLookup& lookup) {
  if (!is_list(options.gpus)) return std::nullopt;
  const auto before = lookup("CUDA_VISIBLE_DEVICES");
  if (!before) return options.gpus;
  const auto devices = parts_of(*before);
  std::vector<std::string> chosen;
  for (const int index : indices_of(options.gpus)) {
    if (index >= std::ssize(devices))
      throw InvalidArgument(fmt::format(
          "--gpus {} counts among CUDA_VISIBLE_DEVICES={}, which has {}",
          options.gpus, *before, devices.size()));
    chosen.push_back(devices[static_cast<std::size_t>(index)]);
  }
  return fmt::format("{}", fmt::join(chosen, ","));
}

std::string device_of_rank(const TrainOptions& options, int local_rank) {
  if (options.device == "cpu") return options.device;
  return fmt::format("{}:{}", options.device, local_rank);
}

}  // namespace lockstep
