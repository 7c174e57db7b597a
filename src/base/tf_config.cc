#include "src/base/tf_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/process_environment.h"
#include "src/base/rank_environment.h"

namespace lockstep {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& problem, const std::string& next) {
  throw InvalidArgument(
      fmt::format("TF_CONFIG: {}\n  next:    {}", problem, next));
}

constexpr const char* kShape =
    R"(set it to {"cluster": {"worker": ["HOST:PORT", ...]}, )"
    R"("task": {"type": "worker", "index": 0}}, or unset it)";

void check_address(const std::string& type, const json& address) {
  if (!address.is_string())
    refuse(fmt::format("an address of \"{}\": expected a string, got {}", type,
                       address.dump()),
           kShape);
  const auto text = address.get<std::string>();
  const auto colon = text.rfind(':');
  const std::string port =
      colon == std::string::npos ? "" : text.substr(colon + 1);
  const bool digits = !port.empty() && port.size() <= 5 &&
                      port.find_first_not_of("0123456789") == std::string::npos;
  if (colon == 0 || !digits || std::stoi(port) < 1 || std::stoi(port) > 65535)
    refuse(fmt::format("\"{}\" in \"{}\" is not HOST:PORT", text, type),
           kShape);
}

std::vector<std::string> addresses_of(const json& cluster,
                                      const std::string& type) {
  const auto found = cluster.find(type);
  if (found == cluster.end()) return {};
  if (!found->is_array())
    refuse(fmt::format("\"{}\": expected a list of addresses, got {}", type,
                       found->dump()),
           kShape);
  for (const json& address : *found) check_address(type, address);
  return found->get<std::vector<std::string>>();
}

json parse(const std::string& text) {
  json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (config.is_discarded() || !config.is_object())
    refuse("it is not a JSON object: " + text.substr(0, 200), kShape);
  return config;
}

// The object `name` in `config`; an empty object when it is absent.
json object_in(const json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end()) return json::object();
  if (!found->is_object())
    refuse(
        fmt::format("\"{}\": expected an object, got {}", name, found->dump()),
        kShape);
  return *found;
}

std::pair<std::string, std::int64_t> task_of(const json& config) {
  const json task = object_in(config, "task");
  const auto type = task.find("type");
  const auto index = task.find("index");
  if (type == task.end() || !type->is_string() || index == task.end())
    refuse("\"task\" does not say which worker this process is", kShape);
  // Some schedulers write the index as a string.
  const json number =
      index->is_string()
          ? json::parse(index->get<std::string>(), nullptr, false)
          : *index;
  if (!number.is_number_integer())
    refuse(
        fmt::format("the index {} of the task is not a number", index->dump()),
        kShape);
  return {type->get<std::string>(), number.get<std::int64_t>()};
}

void check_environment(const TfConfig& config,
                       const EnvironmentLookup& lookup) {
  const RankEnvironment said = read_rank_environment(lookup);
  const auto compare = [&](const char* what, std::optional<int> other,
                           int ours) {
    if (other && *other != ours)
      refuse(fmt::format("it makes the {} {}, but {} says {}", what, ours,
                         name_of(said.launcher), *other),
             "start the workers without that launcher, or unset TF_CONFIG");
  };
  compare("rank", said.rank, config.rank);
  compare("world size", said.world_size, config.world_size);
}

}  // namespace

std::optional<TfConfig> read_tf_config(const EnvironmentLookup& lookup) {
  const auto text = lookup("TF_CONFIG");
  if (!text || text->empty()) return std::nullopt;
  const json config = parse(*text);
  const json cluster = object_in(config, "cluster");
  if (cluster.empty()) return std::nullopt;
  if (cluster.contains("ps"))
    refuse("it names parameter servers, which this strategy does not use",
           "list all machines under \"worker\"");
  const auto chiefs = addresses_of(cluster, "chief");
  const auto workers = addresses_of(cluster, "worker");
  if (chiefs.size() > 1) refuse("it names more than one chief", kShape);
  const auto [type, index] = task_of(config);
  const bool chief = type == "chief";
  if (!chief && type != "worker")
    refuse(fmt::format("a task of type \"{}\" does not train", type),
           "use \"worker\", or \"chief\" where the cluster names one");
  const auto& own = chief ? chiefs : workers;
  if (index < 0 || index >= std::ssize(own))
    refuse(fmt::format("the task is {} {}, but the cluster names {} of them",
                       type, index, own.size()),
           "let the index be a place, from 0, in the cluster's list");
  const TfConfig found{
      .rank = static_cast<int>(index) +
              (chief ? 0 : static_cast<int>(chiefs.size())),
      .world_size = static_cast<int>(chiefs.size() + workers.size()),
      .first_address = chiefs.empty() ? workers[0] : chiefs[0]};
  check_environment(found, lookup);
  return found;
}

std::optional<TfConfig> read_tf_config() {
  return read_tf_config(environment_variable);
}

}  // namespace lockstep
