#include "src/launch/nodes/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/secret.h"
#include "src/base/settings.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/store/host_address.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// How long a launcher that the store does not answer waits for it.
constexpr auto kStoreAnswers = 15s;
// How long the launcher's loop may stand still to report a failure.
constexpr auto kReport = 2s;
// Between two questions whether the user wants the launcher to end.
constexpr auto kPause = 200ms;
constexpr std::size_t kIdBytes = 8;

std::string url_of(const TcpEndpoint& endpoint) {
  return std::string(kTcpScheme) + host_and_port(endpoint.host, endpoint.port);
}

// The address at which the other hosts reach this one.
std::string address_of(const NodeOptions& options) {
  Settings settings;
  settings.store = url_of(options.endpoint);
  settings.interface = options.local_address;
  // The others may be elsewhere.
  settings.world_size = options.workers + 1;
  settings.local_world_size = options.workers;
  if (is_loopback_everywhere(options.endpoint.host))
    return options.endpoint.host;
  return choose_host_address(settings);
}

// "2", "2:4".
std::string range_of(const NodesAgreement& agreement) {
  return agreement.least == agreement.most
             ? fmt::format("{}", agreement.least)
             : fmt::format("{}:{}", agreement.least, agreement.most);
}

[[noreturn]] void refuse(const std::string& flag, const std::string& ours,
                         const std::string& theirs) {
  throw InvalidArgument(fmt::format(
      "the launchers of this job disagree: {} is {} here, but {} on the host "
      "that came first\n"
      "  next:    give the same flags to lockstep run on every host; another "
      "job needs another port in --rdzv-endpoint",
      flag, ours, theirs));
}

}  // namespace

Node::Node(NodeOptions options, const AskInterrupted& interrupted)
    : options_(std::move(options)),
      id_(random_hex(kIdBytes)),
      host_(own_host_name()) {
  serve_if_here();
  open(interrupted);
  agree();
  store_->set_last_will(lost_key(id_), to_bytes(host_), kStoreAnswers);
  if (server_)
    coordinator_ = std::make_unique<Coordinator>(
        store_,
        CoordinatorOptions{.least = options_.agreement.least,
                           .most = options_.agreement.most,
                           .max_restarts = options_.agreement.max_restarts,
                           .host = options_.endpoint.host,
                           .join_timeout = options_.join_timeout,
                           .last_call = options_.last_call});
}

Node::~Node() { stop_watching(); }

// On the endpoint's host the launcher that comes first serves.
void Node::serve_if_here() {
  const TcpEndpoint& endpoint = options_.endpoint;
  const bool is_here = has_one_of(resolve(endpoint.host, endpoint.port));
  if (options_.node_rank == 0 && !is_here)
    throw InvalidArgument(fmt::format(
        "--node-rank is 0, but {} is not an address of this host\n"
        "  next:    name the host of --node-rank 0 in --rdzv-endpoint or "
        "--master-addr",
        endpoint.host));
  if (!is_here || options_.node_rank > 0) return;
  try {
    server_ = std::make_unique<TcpStoreServer>(listen_for_hosts(endpoint),
                                               options_.token);
  } catch (const NetworkError&) {
    if (options_.node_rank == 0) throw;
    // Another launcher of this host serves, or a program that open() reports.
  }
}

void Node::open(const AskInterrupted& interrupted) {
  const Deadline too_late(options_.join_timeout);
  while (!store_) {
    if (interrupted()) throw Interrupted("the rendezvous was interrupted");
    try {
      store_ = open_store(url_of(options_.endpoint),
                          {.token = options_.token,
                           .deadline = std::min(too_late, Deadline(1s))});
    } catch (const Timeout&) {
      if (too_late.expired()) throw;
    }
  }
}

void Node::agree() {
  const NodesAgreement& ours = options_.agreement;
  const auto theirs = decode<NodesAgreement>(to_text(store_->compare_and_set(
      kAgreementKey, std::nullopt, to_bytes(encode(ours)), kStoreAnswers)));
  if (ours.job != theirs.job) refuse("--rdzv-id", ours.job, theirs.job);
  if (ours.version != theirs.version)
    refuse("the version of Lockstep", ours.version, theirs.version);
  if (range_of(ours) != range_of(theirs))
    refuse("--nnodes", range_of(ours), range_of(theirs));
  if (ours.max_restarts != theirs.max_restarts)
    refuse("--max-restarts", std::to_string(ours.max_restarts),
           std::to_string(theirs.max_restarts));
}

std::size_t Node::wait_for(const std::vector<std::string>& keys,
                           const AskInterrupted& interrupted) {
  for (;;) {
    if (interrupted()) throw Interrupted("the wait for hosts was interrupted");
    try {
      return store_->wait_any(keys, kPause);
    } catch (const Timeout&) {
      continue;
    } catch (const NetworkError&) {
      lose_rendezvous();
    }
  }
}

// A call that does not wait for another launcher, so a Timeout, too, means a
// store that is gone.
template <class Call>
auto Node::answered(Call call) {
  try {
    return call();
  } catch (const NetworkError&) {
    lose_rendezvous();
  } catch (const Timeout&) {
    lose_rendezvous();
  }
}

std::string Node::get(const std::string& key) {
  return answered([&] { return to_text(store_->get(key, kStoreAnswers)); });
}

void Node::set(const std::string& key, std::string_view value) {
  answered([&] { store_->set(key, to_bytes(value), kStoreAnswers); });
}

void Node::lose_rendezvous() const {
  throw RendezvousLost(fmt::format(
      "the launcher that serves the rendezvous at {} is gone: it ended, or the "
      "link to its host is down\n"
      "  next:    run the same command on every host again; the program "
      "resumes from its last checkpoint if it saves them",
      host_and_port(options_.endpoint.host, options_.endpoint.port)));
}

NodePlace Node::join(std::uint16_t master_port,
                     const AskInterrupted& interrupted, const Tell& tell) {
  const NodeCard card{.id = id_,
                      .host = host_,
                      .address = address_of(options_),
                      .workers = options_.workers,
                      .node_rank = options_.node_rank,
                      .master_port = master_port};
  for (;;) {
    const RoundKeys keys(++round_);
    const auto index = store_->add(keys.arrivals(), 1, kStoreAnswers) - 1;
    set(keys.card(static_cast<int>(index)), encode(card));
    if (round_ == 0)
      tell(fmt::format(
          "waits for {} hosts at {}", range_of(options_.agreement),
          host_and_port(options_.endpoint.host, options_.endpoint.port)));
    const std::size_t found = wait_for(
        {keys.plan(), keys.refusal(), std::string(kOverKey)}, interrupted);
    if (found == 1) throw InvalidArgument(get(keys.refusal()));
    if (found == 2)
      throw InvalidArgument(
          "the job of this rendezvous has ended already\n"
          "  next:    start the new job on every host, or with another port in "
          "--rdzv-endpoint");
    const auto plan = decode<RoundPlan>(get(keys.plan()));
    if (std::ranges::find(plan.nodes, id_, &NodeCard::id) == plan.nodes.end()) {
      tell("the job runs already; this host takes part after the next restart");
      continue;
    }
    NodePlace place = place_in(plan);
    group_rank_ = place.group_rank;
    watch_round();
    return place;
  }
}

NodePlace Node::place_in(const RoundPlan& plan) const {
  NodePlace place{.world_size = 0,
                  .group_world_size = static_cast<int>(plan.nodes.size()),
                  .master_address = plan.nodes.front().address,
                  .master_port = plan.nodes.front().master_port,
                  .store_url = plan.store_url,
                  .token = plan.token,
                  .restarts = plan.restarts};
  for (const NodeCard& node : plan.nodes) {
    if (node.id == id_) place.first_rank = place.world_size;
    place.world_size += node.workers;
  }
  place.group_rank = static_cast<int>(
      std::ranges::find(plan.nodes, id_, &NodeCard::id) - plan.nodes.begin());
  return place;
}

// A fault of any host, or the loss of the rendezvous, ends the workers here.
void Node::watch_round() {
  stop_watching();
  ended_elsewhere_.reset();
  watch_ends_ = std::make_unique<Cancellation>();
  watch_ =
      std::thread([this, ends = watch_ends_.get(), keys = RoundKeys(round_)] {
        try {
          const std::vector<std::string> end{keys.fault(), keys.verdict()};
          store_->wait_any(end, Deadline::never(), ends);
        } catch (const Cancelled&) {
          return;
        } catch (const Error&) {
          // finish() reports it.
        }
        ended_elsewhere_.signal();
      });
}

void Node::stop_watching() {
  if (!watch_.joinable()) return;
  watch_ends_->cancel();
  watch_.join();
}

void Node::report(std::string text, int exit_code, bool final) {
  const RoundFault fault{.node = id_,
                         .text = std::move(text),
                         .exit_code = exit_code,
                         .final = final};
  const std::string key = RoundKeys(round_).fault();
  const Bytes mine = to_bytes(encode(fault));
  try {
    const Bytes first =
        store_->compare_and_set(key, std::nullopt, mine, kReport);
    // The user's wish replaces a fault after which the workers would start
    // again.
    if (final && !decode<RoundFault>(to_text(first)).final)
      store_->compare_and_set(key, first, mine, kReport);
  } catch (const Error&) {
    // finish() reports that the rendezvous is lost.
  }
}

RoundVerdict Node::finish(bool well, const AskInterrupted& interrupted) {
  stop_watching();
  const RoundKeys keys(round_);
  if (well) set(keys.done(group_rank_), "");
  set(keys.ended(group_rank_), "");
  wait_for({keys.verdict()}, interrupted);
  auto verdict = decode<RoundVerdict>(get(keys.verdict()));
  try {
    if (verdict.next != "restart") store_->withdraw_last_will(kStoreAnswers);
    store_->set(keys.read(group_rank_), {}, kStoreAnswers);
  } catch (const Error&) {
    // The launcher that serves has ended, as it may now.
  }
  return verdict;
}

}  // namespace lockstep
