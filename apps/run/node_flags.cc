#include "apps/run/node_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <utility>

#include "apps/job/flags.h"
#include "lockstep/base/error.h"
#include "src/base/first_line.h"
#include "src/base/number_in.h"
#include "src/base/version.h"
#include "src/store/token_proof.h"

namespace lockstep {
namespace {

constexpr int kMostNodes = 65536;
constexpr std::array<std::string_view, 2> kRendezvousBackends{"c10d", "static"};

void add_host_flags(CLI::App& command, NodeFlags& flags) {
  command
      .add_option("-H,--host,--hosts", flags.host_list,
                  "Start the launchers of these hosts over ssh, in this "
                  "directory and with so many ranks each [-n]")
      ->type_name("HOST[:RANKS],...");
  command
      .add_option("--hostfile", flags.host_file,
                  "The same from a file with lines like HOST slots=RANKS")
      ->type_name("FILE");
  command
      .add_option("--ssh", flags.ssh,
                  "The command before a host's name, with its options")
      ->capture_default_str()
      ->type_name("COMMAND");
  command
      .add_option("-x", flags.variables,
                  "A variable for ranks on other hosts, beside those of "
                  "Lockstep, LibTorch and their libraries")
      ->type_name("NAME[=VALUE]")
      ->allow_extra_args(false);
}

NodesAgreement agreement_of(const NodeFlags& flags, const NodeRange& range) {
  return {.version = std::string(version()),
          .job = flags.id,
          .least = range.least,
          .most = range.most,
          .max_restarts = flags.max_restarts};
}

}  // namespace

void add_node_flags(CLI::App& command, NodeFlags& flags) {
  command
      .add_option("--nnodes", flags.nodes,
                  "Hosts of the job: N, or MIN:MAX to go on without some [1, "
                  "or all hosts of -H]")
      ->type_name("N|MIN:MAX");
  command
      .add_option("--node-rank", flags.node_rank,
                  "Number of this host, from 0 [in the order of coming]")
      ->check(whole_number(0, kMostNodes - 1));
  command
      .add_option(
          "--rdzv-endpoint", flags.endpoint,
          "Where the hosts' launchers meet; the one on that host serves "
          "[port 29400]")
      ->type_name("HOST[:PORT]");
  command
      .add_option("--rdzv-id", flags.id,
                  "Name of the job, the same on every host")
      ->capture_default_str();
  command
      .add_option("--rdzv-backend", flags.backend,
                  "c10d or static; no effect; accepted for torchrun's users")
      ->check(one_of("rendezvous backend", kRendezvousBackends))
      ->capture_default_str();
  command
      .add_option(
          "--rdzv-conf", flags.configuration,
          "Seconds to wait for hosts: join_timeout for the least [600], "
          "last_call_timeout for more [30]")
      ->type_name("KEY=SECONDS,...");
  command
      .add_option("--master-addr", flags.master_address,
                  "The host of --node-rank 0; like --rdzv-endpoint")
      ->type_name("HOST");
  command
      .add_option("--master-port", flags.master_port,
                  "MASTER_PORT for the workers [a free port]; with "
                  "--master-addr the port where launchers meet [29500]")
      ->check(whole_number(1, 65535))
      ->type_name("PORT");
  command
      .add_option("--local-addr", flags.local_address,
                  "Address or interface at which other hosts reach this one "
                  "[the one that routes to the endpoint]")
      ->type_name("ADDRESS");
  command
      .add_option("--max-restarts", flags.max_restarts,
                  "How often workers start again after a failure")
      ->check(whole_number(0, 1'000'000))
      ->capture_default_str();
  command.add_flag("--standalone", flags.standalone,
                   "One host, whatever the environment says");
  add_host_flags(command, flags);
}

namespace {

NodeRange parse_nodes(std::string_view text) {
  NodeRange range;
  const auto parse = [&](std::string_view part, int& number) {
    number = number_in<int>(part).value_or(0);
    return number >= 1 && number <= kMostNodes;
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
        flags.nodes.value_or("1")));
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
JoinTimes parse_times(std::string_view text) {
  JoinTimes times;
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
    (is_join ? times.join : times.last_call) = time;
  }
  return times;
}

// -H says all about the hosts.
void check_host_flags(const NodeFlags& flags) {
  const auto refuse = [](const char* flag, bool given) {
    if (given)
      throw InvalidArgument(fmt::format(
          "-H starts all launchers of the job and says where they meet: leave "
          "{} out",
          flag));
  };
  refuse("--rdzv-endpoint", !flags.endpoint.empty());
  refuse("--master-addr", !flags.master_address.empty());
  refuse("--node-rank", flags.node_rank >= 0);
  refuse("--standalone", flags.standalone);
}

}  // namespace

std::vector<HostSlots> hosts_of(const NodeFlags& flags) {
  if (flags.is_ordered) return {};
  if (!flags.host_list.empty() && !flags.host_file.empty())
    throw InvalidArgument(
        "-H and --hostfile both name the hosts: give only one of them");
  if (flags.host_list.empty() && flags.host_file.empty()) {
    if (!flags.variables.empty())
      throw InvalidArgument("-x is for -H: ranks on this host have it anyway");
    return {};
  }
  check_host_flags(flags);
  if (flags.ssh.find_first_not_of(' ') == std::string::npos)
    throw InvalidArgument("--ssh is empty; it names a command, as \"ssh\"");
  return flags.host_file.empty() ? parse_host_list(flags.host_list)
                                 : read_host_file(flags.host_file);
}

NodeRange range_of(const NodeFlags& flags, std::size_t named) {
  const int hosts = static_cast<int>(std::max<std::size_t>(named, 1));
  if (!flags.nodes) return {.least = hosts, .most = hosts};
  const NodeRange range = parse_nodes(*flags.nodes);
  if (named > 0 && range.most != hosts)
    throw InvalidArgument(fmt::format(
        "--nnodes is {}, but there are {} hosts: leave it out, or give the "
        "least that must remain, as in {}:{}",
        flags.nodes.value_or("1"), hosts, std::max(1, hosts - 1), hosts));
  return range;
}

void obey(const HostOrder& order, NodeFlags& flags) {
  flags.is_ordered = true;
  flags.nodes = fmt::format("{}:{}", order.least, order.most);
  flags.node_rank = order.node_rank;
  flags.endpoint = order.endpoint;
  flags.local_address.clear();  // that of the host which gave the order
}

JoinTimes join_times_of(const NodeFlags& flags) {
  return parse_times(flags.configuration);
}

std::string token_of_hosts(const EnvironmentLookup& lookup) {
  std::string token = lookup("LOCKSTEP_TOKEN").value_or("");
  try {
    check_token(token);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(first_line(error.what()));  // as usage errors are
  }
  return token;
}

std::vector<std::string> ignored_flags(const NodeFlags& flags) {
  std::vector<std::string> ignored;
  const auto note = [&](const char* flag, const std::string& value) {
    ignored.push_back(fmt::format(
        "{} {} has no effect beside --standalone: the job is on this host "
        "alone",
        flag, value));
  };
  if (!flags.standalone) return ignored;
  if (!flags.endpoint.empty()) note("--rdzv-endpoint", flags.endpoint);
  if (!flags.master_address.empty())
    note("--master-addr", flags.master_address);
  if (flags.node_rank > 0) note("--node-rank", std::to_string(flags.node_rank));
  return ignored;
}

std::optional<NodeOptions> nodes_of(const NodeFlags& flags,
                                    const EnvironmentLookup& lookup) {
  const NodeRange range = range_of(flags, 0);
  if (flags.standalone && range.most > 1)
    throw InvalidArgument(
        fmt::format("--standalone means one host, but --nnodes is {}: leave "
                    "one of them out",
                    flags.nodes.value_or("1")));
  const JoinTimes times = join_times_of(flags);
  if (!flags.standalone && flags.node_rank >= range.most)
    throw InvalidArgument(fmt::format(
        "--node-rank is {}, but --nnodes allows at most {} host{}, numbered "
        "from 0",
        flags.node_rank, range.most, range.most == 1 ? "" : "s"));
  if (range.most == 1 && !flags.is_ordered) return std::nullopt;
  return NodeOptions{.endpoint = endpoint_of(flags),
                     .token = token_of_hosts(lookup),
                     .agreement = agreement_of(flags, range),
                     .local_address = flags.local_address,
                     .node_rank = flags.node_rank,
                     .is_ordered = flags.is_ordered,
                     .join_timeout = times.join,
                     .last_call = times.last_call};
}

}  // namespace lockstep
