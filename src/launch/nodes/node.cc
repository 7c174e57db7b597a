#include "src/launch/nodes/node.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/exit_codes.h"
#include "src/base/first_line.h"
#include "src/base/printable.h"
#include "src/base/secret.h"
#include "src/base/settings.h"
#include "src/launch/nodes/program_identity.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/net/wait.h"
#include "src/store/host_address.h"
#include "src/store/peek.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// How long a rendezvous may refuse this launcher before that is an error.
constexpr auto kRefused = 3s;
// How long a launcher that `lockstep run -H` has started looks for it: it
// serves before it starts any, so a longer silence comes from the network.
constexpr auto kOrderer = 6s;
// One attempt to reach the store.
constexpr auto kAttempt = 1s;
// How long the store may take for a call that waits for no other launcher.
constexpr auto kStoreAnswers = 15s;
// A waiting launcher asks this often whether the store still answers, and
// takes it for lost after this silence.
constexpr auto kCheck = 10s;
constexpr auto kSilence = 60s;
// How long the launcher's loop may stand still to report a failure.
constexpr auto kReport = 2s;
// How long the fault that explains a host's lost peers may come after it.
constexpr auto kCause = 300ms;
// Between two questions whether the user wants the launcher to end.
constexpr auto kPause = 200ms;
// Before a launcher says what it waits for in a restart, which takes
// milliseconds if every host lives.
constexpr auto kQuiet = 3s;
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
  if (options.local_address.empty() &&
      is_loopback_everywhere(options.endpoint.host))
    return options.endpoint.host;
  return choose_host_address(settings);
}

// "2", "2:4".
std::string range_of(const NodesAgreement& agreement) {
  return agreement.least == agreement.most
             ? fmt::format("{}", agreement.least)
             : fmt::format("{}:{}", agreement.least, agreement.most);
}

// "--in-place --min-ranks 2".
std::string in_place_flags(const NodesAgreement& agreement) {
  if (agreement.min_ranks < 0) return "a restart (no --in-place)";
  if (agreement.min_ranks == 0) return "--in-place";
  return fmt::format("--in-place --min-ranks {}", agreement.min_ranks);
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

// Whether the job of `store` is over; nothing where the store does not tell.
// Waits until the job's first launcher has published the agreement.
std::optional<bool> is_over(Store& store) {
  const std::vector<std::string> keys{std::string(kOverKey),
                                      std::string(kAgreementKey)};
  try {
    return store.wait_any(keys, kStoreAnswers) == 0;
  } catch (const NetworkError&) {
    return std::nullopt;
  } catch (const Timeout&) {
    return std::nullopt;  // its first launcher does not get on; try again
  }
}

}  // namespace

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

Node::Node(NodeOptions options, NodeUser user)
    : options_(std::move(options)),
      user_(std::move(user)),
      id_(random_hex(kIdBytes)),
      host_(own_host_name()) {
  // Before the wait, for the sake of a wrong one.
  if (!options_.local_address.empty()) address_ = address_of(options_);
  open();
  if (address_.empty()) address_ = address_of(options_);
  answered([this] { agree(); });
  if (server_)
    coordinator_ = std::make_unique<Coordinator>(
        store_,
        CoordinatorOptions{.least = options_.agreement.least,
                           .most = options_.agreement.most,
                           .max_restarts = options_.agreement.max_restarts,
                           .min_ranks = options_.agreement.min_ranks,
                           .host = options_.endpoint.host,
                           .join_timeout = options_.join_timeout,
                           .last_call = options_.last_call});
}

Node::~Node() { stop_watching(); }

std::string Node::place() const {
  return host_and_port(options_.endpoint.host, options_.endpoint.port);
}

// `obstacle`: what the last attempt met.
void Node::fail_to_open(const std::string& obstacle) const {
  if (options_.is_ordered)
    throw NetworkError(fmt::format(
        "the launcher on {} does not reach the command that started it at {}: "
        "{}\n"
        "  likely:  the hosts reach the command's host at another address, or "
        "a "
        "firewall blocks the port\n"
        "  next:    give lockstep run that address, or its interface, with "
        "--local-addr",
        host_, place(), obstacle));
  throw Timeout(fmt::format(
      "no launcher served the rendezvous at {} within {:.0f} s: {}\n"
      "  next:    start lockstep run on that host too, and check "
      "--rdzv-endpoint, or the port that a firewall may block",
      place(), std::chrono::duration<double>(options_.join_timeout).count(),
      obstacle));
}

void Node::open() {
  const Deadline too_late(
      options_.is_ordered
          ? std::min<std::chrono::nanoseconds>(options_.join_timeout, kOrderer)
          : options_.join_timeout);
  std::string obstacle;
  bool told = false;
  while (!(store_ = try_to_open(obstacle))) {
    if (user_.ending_signal() != 0)
      throw Interrupted("the wait for the rendezvous was interrupted");
    if (too_late.expired()) fail_to_open(obstacle);
    if (!std::exchange(told, true))
      user_.tell(
          fmt::format("waits for the rendezvous at {}: {}", place(), obstacle));
    lockstep::wait_for(-1, 0, kPause);
  }
}

// The endpoint's. A name may be unknown until its host has started; a wrong one
// stays unknown.
std::vector<SocketAddress> Node::addresses() try {
  auto found = resolve(options_.endpoint.host, options_.endpoint.port);
  unknown_until_.reset();
  return found;
} catch (const NetworkError&) {
  if (!unknown_until_) unknown_until_.emplace(options_.name_timeout);
  throw;
}

// Nothing where no store can be used yet; `obstacle` then says why.
std::shared_ptr<Store> Node::try_to_open(std::string& obstacle) {
  bool is_here = false;
  try {
    is_here = has_one_of(addresses());
  } catch (const NetworkError& error) {
    obstacle = first_line(error.what());
    if (!unknown_until_->expired()) return nullptr;
    throw NetworkError(fmt::format(
        "the rendezvous at {} has no address after {:.0f} s: {}\n"
        "  next:    check the name in --rdzv-endpoint or --master-addr, "
        "/etc/hosts and the name server",
        place(), std::chrono::duration<double>(options_.name_timeout).count(),
        obstacle));
  }
  obstacle = "no launcher serves there yet";
  try {
    serve_if_here(is_here);
  } catch (const NetworkError& error) {
    // Another launcher serves, or another program, which does not answer.
    obstacle = first_line(error.what());
  }
  const std::string url =
      server_ ? url_on_this_host(options_.endpoint) : url_of(options_.endpoint);
  std::shared_ptr<Store> store;
  try {
    store = open_store(url, {.token = options_.token, .deadline = kAttempt});
  } catch (const Timeout& error) {
    if (options_.is_ordered) obstacle = first_line(error.what());
    return nullptr;
  } catch (const NetworkError& error) {
    // A server that ends at this moment refuses connections too.
    if (!refused_until_) refused_until_.emplace(kRefused);
    if (refused_until_->expired()) throw;
    obstacle = first_line(error.what());
    return nullptr;
  }
  if (server_) return store;
  const auto over = is_over(*store);
  if (over && !*over) return store;
  if (over && options_.is_ordered)
    throw JobIsOver("the job ended before this host came");
  obstacle = "the last job there ends at this moment";
  return nullptr;
}

// On the endpoint's host the launcher that comes first serves.
void Node::serve_if_here(bool is_here) {
  const TcpEndpoint& endpoint = options_.endpoint;
  if (server_ || options_.is_ordered || options_.node_rank > 0) return;
  if (!is_here && options_.node_rank != 0) return;
  server_ = std::make_unique<TcpStoreServer>(listen_for_hosts(endpoint),
                                             options_.token);
  if (!is_here)
    user_.tell(fmt::format(
        "serves the rendezvous, because --node-rank is 0, but {} is not an "
        "address of this host; unless it is forwarded here, no other host "
        "will find it",
        endpoint.host));
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
  if (ours.min_ranks != theirs.min_ranks)
    refuse("what follows a death", in_place_flags(ours),
           in_place_flags(theirs));
  agree_on_program();
  if (options_.is_ordered) set(came_key(options_.node_rank), "");
}

// Ranks of different programs would compute different things without a word.
void Node::agree_on_program() {
  const std::string name = own_program(options_.command).string();
  const std::string ours = name.empty() ? "" : identity_of(name);
  if (ours.empty()) return;
  const ProgramCard mine{.host = own_host_name(), .identity = ours};
  const auto first = decode<ProgramCard>(to_text(store_->compare_and_set(
      kProgramKey, std::nullopt, to_bytes(encode(mine)), kStoreAnswers)));
  if (first.identity == ours) return;
  throw InvalidArgument(fmt::format(
      "the hosts of this job have different programs: {} has {} here, but {} "
      "on {}, which came first\n"
      "  next:    copy the program to every host; where each host needs a "
      "build of its own, start it as \"env {}\", which is not compared",
      printable(name), ours, printable(first.identity), printable(first.host),
      printable(name)));
}

std::size_t Node::wait_for(const std::vector<std::string>& keys,
                           const std::string& notice, Deadline quiet) {
  Cancellation cancelled;
  auto found = std::async(std::launch::async, [&] {
    for (;;) {
      try {
        return store_->wait_any(keys, kCheck, &cancelled);
      } catch (const Timeout&) {
        store_->get(kAgreementKey, kSilence, &cancelled);
      }
    }
  });
  bool told = false;
  while (found.wait_for(kPause) != std::future_status::ready) {
    if (!told && quiet.expired()) {
      told = true;
      user_.tell(notice);
    }
    if (user_.ending_signal() == 0) continue;
    cancelled.cancel();
    found.wait();
    throw Interrupted("the wait for the other hosts was interrupted");
  }
  return answered([&] { return found.get(); });
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
      "  next:    start the job again on every host{}; here it was\n"
      "             {}\n"
      "           the program resumes from its last checkpoint if it saves "
      "them",
      place(),
      re_forms_in_place() ? ", or on this one if the others go on" : "",
      options_.command_line));
}

// Publishes the card for a round. The store says when this launcher is lost,
// for each round under another key: an earlier connection may end later.
void Node::come(const RoundKeys& keys, std::uint16_t master_port) {
  const NodeCard card{.id = id_,
                      .host = host_,
                      .address = address_,
                      .workers = options_.workers,
                      .node_rank = options_.node_rank,
                      .master_port = master_port,
                      .grace = options_.grace.count()};
  const Bytes mine = to_bytes(encode(card));
  answered([&] {
    store_->set_last_will({keys.lost(id_)}, to_bytes(host_), kStoreAnswers);
    // Without a hole, also where a launcher dies here.
    auto index = static_cast<int>(store_->add(keys.cards(), 0, kStoreAnswers));
    while (store_->compare_and_set(keys.card(index), std::nullopt, mine,
                                   kStoreAnswers) != mine)
      ++index;
    store_->add(keys.cards(), 1, kStoreAnswers);
  });
}

// A job that re-forms in place has one round, which hosts may join later.
std::optional<RoundVerdict> Node::join(JobEnvironment& job) {
  const bool in_place = re_forms_in_place();
  for (bool is_spare = false, told = false;; is_spare = true) {
    if (!is_spare || !in_place) {
      ++round_;
      fault_.reset();
      come(RoundKeys(round_), job.master_port);
    }
    const RoundKeys keys(round_);
    if (is_spare && !std::exchange(told, true))
      user_.tell(in_place
                     ? "the job runs already; this host takes part once the "
                       "ranks commit, unless it has as many hosts as --nnodes "
                       "allows"
                     : "the job runs already; this host takes part after the "
                       "next restart");
    const std::string plan =
        is_spare && in_place ? keys.late_plan(id_) : keys.plan();
    const std::size_t found =
        wait_for({plan, keys.refusal(id_), std::string(kOverKey)},
                 fmt::format("waits for {} hosts at {}",
                             range_of(options_.agreement), place()),
                 is_spare && in_place ? Deadline::never()
                 : round_ == 0        ? Deadline(0s)
                                      : Deadline(kQuiet));
    if (found != 0) {
      const std::string text =
          get(found == 1 ? keys.refusal(id_) : std::string(kOverKey));
      confirm_end();
      if (found == 1) throw InvalidArgument(text);
      user_.tell("the job has ended, without workers of this host");
      return decode<RoundVerdict>(text);
    }
    if (take_part_in(decode<RoundPlan>(get(plan)), job)) break;
  }
  watch_round();
  return std::nullopt;
}

// Returns false if the plan leaves this host out.
bool Node::take_part_in(const RoundPlan& plan, JobEnvironment& job) const {
  const auto own = std::ranges::find(plan.nodes, id_, &NodeCard::id);
  if (own == plan.nodes.end()) return false;
  const auto workers_before = [&](auto end) {
    int workers = 0;
    for (auto node = plan.nodes.begin(); node != end; ++node)
      workers += node->workers;
    return workers;
  };
  const bool is_late = plan.first_rank >= 0;
  job.joins_late = is_late;
  job.first_rank = is_late ? plan.first_rank : workers_before(own);
  job.world_size =
      std::max(workers_before(plan.nodes.end()), job.first_rank + job.workers);
  job.group_rank =
      is_late ? plan.group_rank : static_cast<int>(own - plan.nodes.begin());
  job.group_world_size = static_cast<int>(plan.nodes.size());
  job.master_address = plan.nodes.front().address;
  job.master_port = plan.nodes.front().master_port;
  job.store_url = plan.store_url;
  job.token = plan.token;
  job.restarts = plan.restarts;
  return true;
}

// A fault of any host, or the loss of the rendezvous, ends the workers here.
// Where a host has only lost peers, the launcher of those may find the cause
// among its own workers, if it has time before it ends them.
void Node::watch_round() {
  stop_watching();
  ended_elsewhere_.reset();
  watch_ends_ = std::make_unique<Cancellation>();
  watch_ = std::thread([this, &ends = *watch_ends_, keys = RoundKeys(round_)] {
    try {
      std::vector<std::string> end{keys.fault(), keys.verdict()};
      if (may_be_left_out()) end.push_back(keys.lost(id_));
      const std::size_t found = store_->wait_any(end, Deadline::never(), &ends);
      if (found == 0 &&
          decode<RoundFault>(get(keys.fault())).kind == EndKind::kConsequence)
        lockstep::wait_for(ends.descriptor(), POLLIN, kCause);
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

// The launcher that serves the rendezvous stays without ranks too.
bool Node::may_be_left_out() const { return re_forms_in_place() && !server_; }

// Of a host that the job goes on without, no fault concerns the others.
void Node::publish_fault(Deadline deadline) {
  if (may_be_left_out() &&
      !peek(*store_, RoundKeys(round_).lost(id_), deadline).empty())
    return;
  report_fault(*store_, RoundKeys(round_).fault(), fault_.value(), deadline);
}

void Node::report(RoundFault fault) {
  if (fault_ && !replaces(fault, *fault_)) return;
  fault.node = id_;
  fault_ = std::move(fault);
  try {
    publish_fault(kReport);
  } catch (const Error&) {
    // finish() tries again.
  }
}

void Node::report_signal(int signal, int exit_code) {
  if (options_.is_cut_off && options_.is_cut_off()) {
    const std::string what = fmt::format(
        "the launcher on {} lost its connection to lockstep run", host_);
    if (re_forms_in_place()) throw LeftOut(what);
    return report({.text = what, .exit_code = kExitFailed});
  }
  report({.text = fmt::format("the launcher on {} received SIG{}", host_,
                              ::sigabbrev_np(signal)),
          .exit_code = exit_code,
          .is_final = true});
}

RoundVerdict Node::finish(bool well) {
  stop_watching();
  const RoundKeys keys(round_);
  if (fault_) answered([&] { publish_fault(kStoreAnswers); });
  if (well) set(keys.done(id_), "");
  set(keys.ended(id_), "");
  std::vector<std::string> ends{keys.verdict()};
  if (may_be_left_out()) ends.push_back(keys.lost(id_));
  try {
    if (wait_for(ends, "waits for the workers on the other hosts",
                 Deadline(kQuiet)) == 1)
      throw LeftOut(fmt::format(
          "the job goes on without this host: all its ranks have died, or its "
          "connection to the rendezvous at {} was lost for a while\n"
          "  next:    start it here again to take part once more:\n"
          "             {}",
          place(), options_.command_line));
  } catch (const Interrupted&) {
    report_signal(user_.ending_signal(), 128 + user_.ending_signal());
    throw;
  }
  auto verdict = decode<RoundVerdict>(get(keys.verdict()));
  if (verdict.next != "restart") confirm_end();
  return verdict;
}

// The launcher that serves may end now, before or after it has heard this.
void Node::confirm_end() {
  try {
    store_->withdraw_last_will(kStoreAnswers);
    store_->set(read_key(id_), {}, kStoreAnswers);
  } catch (const Error&) {
  }
}

}  // namespace lockstep
