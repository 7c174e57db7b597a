#include "src/tools/run/run_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/version.h"
#include "src/tools/job/flags.h"
#include "src/tools/job/job.h"

namespace lockstep {
namespace {

constexpr int kMostNodes = 65536;
constexpr std::array<std::string_view, 2> kRendezvousBackends{"c10d", "static"};

}  // namespace

int parse_workers(std::string_view text, int cores,
                  const std::function<int()>& count_gpus) {
  if (text == "cpu") return cores;
  const int gpus = text == "gpu" || text == "auto" ? count_gpus() : 0;
  if (gpus > 0) return gpus;
  if (text == "auto") return cores;
  if (text == "gpu")
    throw InvalidArgument(
        "--nproc-per-node is gpu, but there is no GPU that these workers could "
        "use: look at nvidia-smi and CUDA_VISIBLE_DEVICES, or give a number");
  int workers = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, workers);
  if (error != std::errc() || stop != end || workers < 1 ||
      workers > kMostRanksOfAHost)
    throw InvalidArgument(fmt::format(
        "--nproc-per-node is \"{}\"; it must be a number from 1 to {}, or cpu, "
        "gpu or auto for the number of cores or GPUs",
        text, kMostRanksOfAHost));
  return workers;
}

void add_node_flags(CLI::App& command, NodeFlags& flags) {
  command
      .add_option("--nnodes", flags.nodes,
                  "Hosts of the job: N, or MIN:MAX to go on without some")
      ->capture_default_str()
      ->type_name("N|MIN:MAX");
  command
      .add_option("--node-rank,--node_rank", flags.node_rank,
                  "Number of this host, from 0 [in the order of coming]")
      ->check(whole_number(0, kMostNodes - 1));
  command
      .add_option(
          "--rdzv-endpoint,--rdzv_endpoint", flags.endpoint,
          "Where the hosts' launchers meet; the one on that host serves "
          "[port 29400]")
      ->type_name("HOST[:PORT]");
  command
      .add_option("--rdzv-id,--rdzv_id", flags.id,
                  "Name of the job, the same on every host")
      ->capture_default_str();
  command
      .add_option("--rdzv-backend,--rdzv_backend", flags.backend,
                  "c10d or static; no effect; accepted for torchrun's users")
      ->check(one_of("rendezvous backend", kRendezvousBackends))
      ->capture_default_str();
  command
      .add_option(
          "--rdzv-conf,--rdzv_conf", flags.configuration,
          "Seconds to wait for hosts: join_timeout for the least [600], "
          "last_call_timeout for more [30]")
      ->type_name("KEY=SECONDS,...");
  command
      .add_option("--master-addr,--master_addr", flags.master_address,
                  "The host of --node-rank 0; like --rdzv-endpoint")
      ->type_name("HOST");
  command
      .add_option("--master-port,--master_port", flags.master_port,
                  "MASTER_PORT for the workers [a free port]; with "
                  "--master-addr the port where launchers meet [29500]")
      ->check(whole_number(1, 65535))
      ->type_name("PORT");
  command
      .add_option("--local-addr,--local_addr", flags.local_address,
                  "Address or interface at which other hosts reach this one "
                  "[the one that routes to the endpoint]")
      ->type_name("ADDRESS");
  command
      .add_option("--max-restarts,--max_restarts", flags.max_restarts,
                  "How often workers start again after a failure")
      ->check(whole_number(0, 1'000'000))
      ->capture_default_str();
  command.add_flag("--standalone", flags.standalone,
                   "One host, whatever the environment says");
}

namespace {

struct NodeRange {
  int least = 1;
  int most = 1;
};

NodeRange parse_nodes(std::string_view text) {
  NodeRange range;
  const auto parse = [&](std::string_view part, int& number) {
    const char* end = part.data() + part.size();
    const auto [stop, error] = std::from_chars(part.data(), end, number);
    return error == std::errc() && stop == end && number >= 1 &&
           number <= kMostNodes;
  };
  const std::size_t colon = text.find(':');
  bool good = parse(text.substr(0, colon), range.least);
  range.most = range.least;
  if (colon != std::string_view::npos)
    good = good && parse(text.substr(colon + 1), range.most);
  if (good && range.least <= range.most) return range;
  throw InvalidArgument(fmt::format(
      "--nnodes is \"{}\"; it must be a number of hosts from 1 to {}, or the "
      "least and the most, as 2:4",
      text, kMostNodes));
}

TcpEndpoint endpoint_of(const NodeFlags& flags) {
  constexpr int kEndpointPort = 29400;
  constexpr int kMasterPort = 29500;
  if (!flags.endpoint.empty() && !flags.master_address.empty())
    throw InvalidArgument(
        "--rdzv-endpoint and --master-addr both say where the launchers meet: "
        "give only one of them");
  if (!flags.master_address.empty())
    return {flags.master_address,
            flags.master_port != 0 ? flags.master_port : kMasterPort};
  if (flags.endpoint.empty())
    throw InvalidArgument(fmt::format(
        "--nnodes {} needs --rdzv-endpoint HOST:PORT, where the launchers of "
        "the hosts meet: the name of one of the hosts, the same on all",
        flags.nodes));
  const std::string& text = flags.endpoint;
  const bool has_port =
      text.rfind(':') != std::string::npos && text.find(':') == text.rfind(':');
  const bool is_bracketed = text.starts_with('[');
  if (!has_port && !is_bracketed)  // a name, or an IPv6 number
    return {text, kEndpointPort};
  if (text.ends_with(']'))
    return {text.substr(1, text.size() - 2), kEndpointPort};
  TcpEndpoint endpoint;
  try {
    endpoint = parse_tcp_url(std::string(kTcpScheme) + text);
  } catch (const InvalidArgument&) {
    endpoint.port = 0;
  }
  if (endpoint.port == 0)
    throw InvalidArgument(fmt::format(
        "--rdzv-endpoint is \"{}\"; it must be HOST or HOST:PORT with a port "
        "from 1 to 65535",
        text));
  return endpoint;
}

// Takes torchrun's keys; those without an effect here are accepted.
void configure(std::string_view text, NodeOptions& options) {
  constexpr std::array<std::string_view, 8> kNoEffect{
      "timeout",           "read_timeout",        "close_timeout",
      "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt",
      "is_host",           "store_type"};
  while (!text.empty()) {
    const std::string_view entry = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
    const std::string_view key = entry.substr(0, entry.find('='));
    if (std::ranges::find(kNoEffect, key) != kNoEffect.end()) continue;
    const std::string value(
        entry.substr(std::min(entry.size(), key.size() + 1)));
    std::size_t used = 0;
    double seconds = 0;
    try {
      seconds = std::stod(value, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    const bool is_join = key == "join_timeout";
    if (!(is_join || key == "last_call_timeout") || used == 0 ||
        used != value.size() || !(seconds > 0 && seconds <= 1e6))
      throw InvalidArgument(fmt::format(
          "--rdzv-conf has \"{}\"; it takes join_timeout=SECONDS and "
          "last_call_timeout=SECONDS, separated by commas",
          entry));
    const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(seconds));
    (is_join ? options.join_timeout : options.last_call) = time;
  }
}

}  // namespace

std::optional<NodeOptions> nodes_of(const NodeFlags& flags,
                                    const EnvironmentLookup& lookup) {
  const NodeRange range = parse_nodes(flags.nodes);
  if (flags.standalone && range.most > 1)
    throw InvalidArgument(
        fmt::format("--standalone means one host, but --nnodes is {}: leave "
                    "one of them out",
                    flags.nodes));
  if (range.most == 1) return std::nullopt;
  if (flags.node_rank >= range.most)
    throw InvalidArgument(fmt::format(
        "--node-rank is {}, but --nnodes allows at most {} hosts: they are "
        "numbered from 0 to {}",
        flags.node_rank, range.most, range.most - 1));
  NodeOptions options{.endpoint = endpoint_of(flags),
                      .token = lookup("LOCKSTEP_TOKEN").value_or(""),
                      .agreement = {.version = std::string(version()),
                                    .job = flags.id,
                                    .least = range.least,
                                    .most = range.most,
                                    .max_restarts = flags.max_restarts},
                      .local_address = flags.local_address,
                      .node_rank = flags.node_rank};
  configure(flags.configuration, options);
  return options;
}

std::vector<std::string> command_of(std::vector<std::string> program,
                                    const PythonFlags& python,
                                    const EnvironmentLookup& lookup) {
  if (python.no_python && python.module)
    throw InvalidArgument(
        "--module runs a Python module, which --no-python forbids: leave one "
        "of them out");
  const std::string& file = program.front();
  const bool is_script = file.ends_with(".py") &&
                         ::access(file.c_str(), R_OK) == 0 &&
                         ::access(file.c_str(), X_OK) != 0;
  if (python.no_python || !(python.module || is_script)) return program;
  if (python.module) program.insert(program.begin(), "-m");
  program.insert(program.begin(),
                 {lookup("PYTHON_EXEC").value_or("python3"), "-u"});
  return program;
}

int run_program(const RunOptions& options, const EnvironmentLookup& lookup) {
  LaunchOptions launch;
  launch.command = options.command;
  launch.job.workers = options.workers;
  launch.job.run_id = options.nodes.id;
  launch.job.max_restarts = options.nodes.max_restarts;
  apply(options.launch, launch);
  auto nodes = nodes_of(options.nodes, lookup);
  // Beside --master-addr it is the port where the launchers meet.
  if (!nodes || options.nodes.master_address.empty())
    launch.job.master_port =
        static_cast<std::uint16_t>(options.nodes.master_port);
  if (nodes)
    return run_job_on_hosts(std::move(launch), std::move(*nodes), lookup);
  return run_job(std::move(launch), lookup);
}

}  // namespace lockstep
