#include "src/launch/nodes/coordinator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/exit_codes.h"
#include "src/base/log.h"
#include "src/base/printable.h"
#include "src/base/secret.h"
#include "src/launch/worker/elastic_rounds.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/store/tcp_store_server.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// How long the launchers may take to read how the job ended.
constexpr auto kReaders = 10s;

// What the loss of its launcher means, in one line.
std::string loss_of(const NodeCard& node) {
  return fmt::format(
      "the launcher on {} ended, or the link to that host is down", node.host);
}

}  // namespace

bool is_set(Store& store, const std::string& key) {
  const std::vector<std::string> keys{key, std::string(kAgreementKey)};
  return store.wait_any(keys, kOwnStoreAnswers) == 0;
}

// A name of this host may mean loopback here and another address elsewhere.
FileDescriptor listen_for_hosts(const TcpEndpoint& endpoint) {
  return is_loopback_everywhere(endpoint.host)
             ? listen_at(endpoint.host, endpoint.port)
             : listen_everywhere(endpoint.port);
}

std::string url_on_this_host(const TcpEndpoint& endpoint) {
  const std::string& host =
      is_loopback_everywhere(endpoint.host) ? endpoint.host : "127.0.0.1";
  return std::string(kTcpScheme) + host_and_port(host, endpoint.port);
}

// One generation of workers.
class Coordinator::Round {
 public:
  // `earlier` took part in the round before, if there was one.
  Round(Coordinator& coordinator, int number, std::vector<NodeCard> earlier)
      : store_(*coordinator.store_),
        options_(coordinator.options_),
        cancelled_(coordinator.cancelled_),
        number_(number),
        keys_(number),
        earlier_(std::move(earlier)) {}

  // Collects the launchers of this round. Returns false if too few come, after
  // those that came have been refused.
  bool gather();
  // Serves the workers' store and tells the launchers to begin.
  void begin();
  // Waits for the end of the round, and publishes what follows. Returns whether
  // another round does.
  bool end();
  // Collects the launchers that have come already.
  void take_present();
  // Waits until the launchers of this round have read how the job ended.
  void wait_for_readers(Deadline deadline);

  std::vector<NodeCard> take_nodes() { return std::move(nodes_); }

 private:
  // The index of the first of `keys` that is set; nothing if the deadline
  // passes first.
  std::optional<std::size_t> first_of(const std::vector<std::string>& keys,
                                      Deadline deadline) {
    try {
      return store_.wait_any(keys, deadline, &cancelled_);
    } catch (const Timeout&) {
      return std::nullopt;
    }
  }

  std::chrono::nanoseconds patience() const;
  bool wait_for_arrival(Deadline deadline);
  std::optional<NodeCard> next_card();
  void take_arrival();
  void take_spare();
  const NodeCard* with_rank_of(const NodeCard& card) const;
  bool has_come(const NodeCard& node) const;
  bool is_complete() const;
  bool drop_lost();
  void put_in_order();
  void refuse(const NodeCard& node, const std::string& reason);
  void refuse_all(const std::string& reason, const std::string& summary);
  void refuse_too_few();
  bool re_forms_in_place() const { return options_.min_ranks >= 0; }
  int ranks() const;
  bool has_enough_ranks();
  void begin_in_place(const std::string& token);
  void finish(RoundVerdict verdict);
  bool all_end_well();
  bool goes_on_without(const NodeCard& node, bool is_working);
  void admit_spares(std::vector<std::string>& working);
  void admit(NodeCard node);
  int first_free_rank(int workers) const;
  std::optional<RoundFault> end_from_outside();
  void explain(RoundFault& fault);
  const NodeCard* first_that_does_not_end();
  void report_lost(const NodeCard& node);

  Store& store_;
  const CoordinatorOptions options_;
  const Cancellation& cancelled_;
  const int number_;
  const RoundKeys keys_;
  std::vector<NodeCard> earlier_;
  int arrived_ = 0;  // cards that were read
  std::vector<NodeCard> nodes_;
  std::unique_ptr<TcpStoreServer> workers_store_;
  RoundPlan plan_;
  // Where the job re-forms in place.
  std::unique_ptr<ElasticRounds> in_place_;
  std::vector<NodeCard> spares_;  // that would join
  // The ranks with which the hosts of nodes_ start their workers, by launcher.
  std::map<std::string, int> first_ranks_;
};

bool Coordinator::Round::has_come(const NodeCard& node) const {
  return std::ranges::find(nodes_, node.id, &NodeCard::id) != nodes_.end();
}

// The launcher, of this round or the one before, whose --node-rank `card` has.
const NodeCard* Coordinator::Round::with_rank_of(const NodeCard& card) const {
  if (card.node_rank < 0) return nullptr;
  for (const auto* cards : {&nodes_, &earlier_})
    for (const NodeCard& node : *cards)
      if (node.node_rank == card.node_rank && node.id != card.id) return &node;
  return nullptr;
}

// Nothing where it is refused.
std::optional<NodeCard> Coordinator::Round::next_card() {
  auto card = decode<NodeCard>(
      to_text(store_.get(keys_.card(arrived_++), kOwnStoreAnswers)));
  card.host = printable(card.host);
  const NodeCard* const other = with_rank_of(card);
  if (other == nullptr) return card;
  refuse(card, fmt::format("--node-rank is {} here, and on {} too\n"
                           "  next:    give each host another number",
                           card.node_rank, other->host));
  return std::nullopt;
}

void Coordinator::Round::take_arrival() {
  drop_lost();
  if (auto card = next_card()) nodes_.push_back(*std::move(card));
}

void Coordinator::Round::take_spare() {
  if (auto card = next_card()) spares_.push_back(*std::move(card));
}

void Coordinator::Round::take_present() {
  while (is_set(store_, keys_.card(arrived_))) take_arrival();
}

// Forgets the launchers that are lost; returns whether there was one. One call
// of the store for each that is lost, and one more.
bool Coordinator::Round::drop_lost() {
  bool any = false;
  const auto drop_from = [&](std::vector<NodeCard>& nodes,
                             const RoundKeys& keys) {
    for (;;) {
      std::vector<std::string> lost;
      for (const NodeCard& node : nodes) lost.push_back(keys.lost(node.id));
      lost.emplace_back(kAgreementKey);
      const std::size_t found = store_.wait_any(lost, kOwnStoreAnswers);
      if (found == nodes.size()) return;
      nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(found));
      any = true;
    }
  };
  drop_from(nodes_, keys_);
  // An earlier host may be lost before or after it has come to this round.
  drop_from(earlier_, RoundKeys(number_ - 1));
  drop_from(earlier_, keys_);
  return any;
}

// A first round waits a while for the most hosts. A restart waits for those of
// the round before, and takes others that have come meanwhile.
bool Coordinator::Round::is_complete() const {
  const int count = static_cast<int>(nodes_.size());
  if (number_ == 0) return count >= options_.most;
  return count >= options_.least &&
         std::ranges::all_of(
             earlier_, [this](const NodeCard& node) { return has_come(node); });
}

// How long the least number of hosts waits for the others. Hosts of the round
// before return, since they are not lost; a short last call leaves none out.
std::chrono::nanoseconds Coordinator::Round::patience() const {
  return number_ == 0 ? options_.last_call
                      : std::max(options_.last_call, options_.end_timeout);
}

// Returns false if the deadline passes before anything changes.
bool Coordinator::Round::wait_for_arrival(Deadline deadline) {
  std::vector<std::string> keys{keys_.card(arrived_)};
  for (const NodeCard& node : earlier_)
    if (!has_come(node))
      keys.insert(keys.end(),
                  {RoundKeys(number_ - 1).lost(node.id), keys_.lost(node.id)});
  keys.emplace_back(kEndKey);
  const auto found = first_of(keys, deadline);
  if (!found) return false;
  if (*found == 0)
    take_arrival();
  else
    drop_lost();
  return true;
}

bool Coordinator::Round::gather() {
  const Deadline too_late(options_.join_timeout);
  Deadline last_call = Deadline::never();
  while (!is_complete() || drop_lost()) {
    if (const auto fault = end_from_outside()) {
      finish({.next = "fail", .fault = *fault});
      return false;
    }
    const bool enough = static_cast<int>(nodes_.size()) >= options_.least;
    if (!enough)
      last_call = Deadline::never();
    else if (last_call.is_never())
      last_call = Deadline(patience());
    if (wait_for_arrival(std::min(too_late, last_call)) || drop_lost())
      continue;
    if (enough) break;
    refuse_too_few();
    return false;
  }
  put_in_order();
  return has_enough_ranks();
}

// Hosts of the round before stay; of the others, those that came first. The
// order is that of --node-rank, then of the round before, then of coming.
void Coordinator::Round::put_in_order() {
  const auto before = [&](const NodeCard& node) {
    return std::ranges::find(earlier_, node.id, &NodeCard::id) -
           earlier_.begin();
  };
  std::ranges::stable_sort(nodes_, {}, before);
  if (static_cast<int>(nodes_.size()) > options_.most) {
    const auto spare = nodes_.begin() + options_.most;
    if (re_forms_in_place()) spares_.assign(spare, nodes_.end());
    nodes_.erase(spare, nodes_.end());
  }
  std::ranges::stable_sort(nodes_, {}, [&](const NodeCard& node) {
    return node.node_rank < 0 ? options_.most : node.node_rank;
  });
}

void Coordinator::Round::refuse(const NodeCard& node,
                                const std::string& reason) {
  store_.set(keys_.refusal(node.id), to_bytes(reason), kOwnStoreAnswers);
}

void Coordinator::Round::refuse_all(const std::string& reason,
                                    const std::string& summary) {
  for (const NodeCard& node : nodes_) refuse(node, reason);
  finish({.next = "fail",
          .fault = {.node = "", .text = summary, .exit_code = kExitUsage}});
}

void Coordinator::Round::refuse_too_few() {
  std::vector<std::string> came;
  for (const NodeCard& node : nodes_) came.push_back(node.host);
  const std::string reason = fmt::format(
      "only {} of at least {} hosts came to the rendezvous within {:.0f} s\n"
      "  came:    {}\n"
      "  next:    {}",
      nodes_.size(), options_.least,
      std::chrono::duration<double>(options_.join_timeout).count(),
      came.empty() ? "none" : fmt::format("{}", fmt::join(came, ", ")),
      options_.advice);
  refuse_all(reason, "too few hosts came");
}

int Coordinator::Round::ranks() const {
  int sum = 0;
  for (const NodeCard& node : nodes_) sum += node.workers;
  return sum;
}

bool Coordinator::Round::has_enough_ranks() {
  if (ranks() >= options_.min_ranks) return true;
  const std::string summary =
      fmt::format("--min-ranks is {}, but the hosts that came start {} ranks",
                  options_.min_ranks, ranks());
  refuse_all(summary +
                 "\n  next:    give a smaller number, or more ranks per host "
                 "(-n)",
             summary);
  return false;
}

void Coordinator::Round::begin_in_place(const std::string& token) {
  const auto store = open_store(
      url_on_this_host({.host = options_.host, .port = workers_store_->port()}),
      {.token = token, .deadline = kOwnStoreAnswers});
  ElasticRounds::Options rounds{
      .launchers = {},
      .min_ranks = options_.min_ranks > 0 ? options_.min_ranks : ranks(),
      .max_restarts = options_.max_restarts};
  for (int first = 0; const NodeCard& node : nodes_) {
    rounds.launchers.emplace_back(node.id, node.workers);
    first_ranks_[node.id] = std::exchange(first, first + node.workers);
  }
  ElasticRounds::begin(*store, rounds);
  in_place_ = std::make_unique<ElasticRounds>(store);
}

void Coordinator::Round::begin() {
  const std::string token = random_hex(sizeof(Secret));
  workers_store_ = std::make_unique<TcpStoreServer>(
      listen_for_hosts({.host = options_.host, .port = 0}), token);
  const std::string url = std::string(kTcpScheme) +
                          host_and_port(options_.host, workers_store_->port());
  if (re_forms_in_place()) begin_in_place(token);
  plan_ = {
      .nodes = nodes_, .store_url = url, .token = token, .restarts = number_};
  store_.set(keys_.plan(), to_bytes(encode(plan_)), kOwnStoreAnswers);
}

// Takes in the hosts that have come since the job began, as far as --nnodes
// allows, until the training has ended.
void Coordinator::Round::admit_spares(std::vector<std::string>& working) {
  while (!spares_.empty() && static_cast<int>(nodes_.size()) < options_.most) {
    in_place_->refresh();
    if (in_place_->is_over()) return;
    working.push_back(spares_.front().id);
    admit(spares_.front());
    spares_.erase(spares_.begin());
  }
}

void Coordinator::Round::admit(NodeCard node) {
  const std::string key = keys_.late_plan(node.id);
  RoundPlan plan = plan_;
  plan.restarts = 1;  // as for replacements, at least
  plan.first_rank = first_ranks_[node.id] = first_free_rank(node.workers);
  nodes_.push_back(std::move(node));
  plan.nodes = nodes_;
  store_.set(key, to_bytes(encode(plan)), kOwnStoreAnswers);
}

// So that no two living workers are started with the same rank.
int Coordinator::Round::first_free_rank(int workers) const {
  int rank = 0;
  for (bool is_free = false; !is_free;) {
    is_free = true;
    for (const NodeCard& node : nodes_) {
      const int first = first_ranks_.at(node.id);
      if (rank + workers <= first || first + node.workers <= rank) continue;
      rank = first + node.workers;
      is_free = false;
    }
  }
  return rank;
}

void Coordinator::Round::report_lost(const NodeCard& node) {
  report_fault(store_, keys_.fault(), {.node = node.id, .text = loss_of(node)},
               kOwnStoreAnswers);
}

// Workers that have ended well have ended the training.
bool Coordinator::Round::goes_on_without(const NodeCard& node,
                                         bool is_working) {
  if (!in_place_) return false;
  return !is_working ||
         in_place_->lost(node.id, {.text = loss_of(node)}).next !=
             ElasticRounds::Next::kEndJob;
}

// Waits until every host's workers have ended well; false once a fault stands
// in the store.
bool Coordinator::Round::all_end_well() {
  std::vector<std::string> working;
  for (const NodeCard& node : nodes_) working.push_back(node.id);
  while (!working.empty()) {
    std::vector<std::string> keys{keys_.fault()};
    for (const std::string& id : working) keys.push_back(keys_.ended(id));
    for (const NodeCard& node : nodes_) keys.push_back(keys_.lost(node.id));
    const std::size_t arrival = keys.size();
    if (in_place_) keys.push_back(keys_.card(arrived_));
    keys.emplace_back(kEndKey);
    const std::size_t found =
        store_.wait_any(keys, Deadline::never(), &cancelled_);
    if (found == 0) return false;
    if (in_place_ && found == arrival) {
      take_spare();
      admit_spares(working);
      continue;
    }
    if (found + 1 == keys.size()) {
      report_fault(store_, keys_.fault(), end_from_outside().value(),
                   kOwnStoreAnswers);
      return false;
    }
    if (found <= working.size()) {
      const auto ended =
          working.begin() + static_cast<std::ptrdiff_t>(found - 1);
      // Its launcher has reported why before.
      if (!is_set(store_, keys_.done(*ended))) return false;
      working.erase(ended);
      continue;
    }
    const auto lost = nodes_.begin() +
                      static_cast<std::ptrdiff_t>(found - 1 - working.size());
    const bool was_working = std::erase(working, lost->id) > 0;
    if (!goes_on_without(*lost, was_working)) {
      report_lost(*lost);
      return false;
    }
    nodes_.erase(lost);
    admit_spares(working);
  }
  return true;
}

std::optional<RoundFault> Coordinator::Round::end_from_outside() {
  const std::string key(kEndKey);
  if (!is_set(store_, key)) return std::nullopt;
  return decode<RoundFault>(to_text(store_.get(key, kOwnStoreAnswers)));
}

// Waits for the workers of every host that is not lost; nothing once they have
// ended.
const NodeCard* Coordinator::Round::first_that_does_not_end() {
  std::chrono::nanoseconds grace{};
  for (const NodeCard& node : nodes_)
    grace = std::max<std::chrono::nanoseconds>(
        grace, std::chrono::milliseconds(node.grace));
  const Deadline deadline(grace + options_.end_timeout);
  for (const NodeCard& node : nodes_) {
    const auto found =
        first_of({keys_.ended(node.id), keys_.lost(node.id)}, deadline);
    if (!found) return &node;
    if (*found == 1) report_lost(node);
  }
  return nullptr;
}

// Workers that only lost a peer may have lost one with whose death the job was
// to go on, but no group has formed since, as in a program without
// elastic::run().
void Coordinator::Round::explain(RoundFault& fault) {
  if (fault.kind != RoundFaultKind::kPeer) return;
  in_place_->refresh();
  const auto death = in_place_->unsurvived_death();
  if (!death) return;
  fault.text = death->text;
  fault.exit_code = death->exit_code;
}

bool Coordinator::Round::end() {
  if (all_end_well()) {
    finish({.next = "finish", .fault = {}});
    return false;
  }
  const NodeCard* still_there = first_that_does_not_end();
  // Only now: meanwhile one of a later kind may have replaced the first.
  auto fault =
      decode<RoundFault>(to_text(store_.get(keys_.fault(), kOwnStoreAnswers)));
  if (still_there != nullptr) {
    fault.text += fmt::format(
        "; the workers on {} did not end, so the job does not restart",
        still_there->host);
    fault.kind = RoundFaultKind::kFinal;
  }
  if (end_from_outside()) fault.kind = RoundFaultKind::kFinal;
  if (in_place_) explain(fault);
  if (in_place_ || fault.kind == RoundFaultKind::kFinal ||
      number_ >= options_.max_restarts) {
    finish({.next = "fail", .fault = fault});
    return false;
  }
  store_.set(keys_.verdict(),
             to_bytes(encode(RoundVerdict{
                 .next = "restart", .fault = fault, .round = number_})),
             kOwnStoreAnswers);
  return true;
}

void Coordinator::Round::finish(RoundVerdict verdict) {
  verdict.round = number_;
  store_.set(kOverKey, to_bytes(encode(verdict)), kOwnStoreAnswers);
  store_.set(keys_.verdict(), to_bytes(encode(verdict)), kOwnStoreAnswers);
}

void Coordinator::Round::wait_for_readers(Deadline deadline) {
  for (const NodeCard& node : nodes_)
    first_of({read_key(node.id), keys_.lost(node.id)}, deadline);
}

Coordinator::Coordinator(std::shared_ptr<Store> store,
                         CoordinatorOptions options)
    : store_(std::move(store)),
      options_(std::move(options)),
      thread_([this] { run(); }) {}

Coordinator::~Coordinator() {
  // A job that is over needs its last readers; any other ends now.
  try {
    if (!is_set(*store_, std::string(kOverKey))) cancelled_.cancel();
  } catch (const Error&) {
    cancelled_.cancel();
  }
  thread_.join();
}

// So that no launcher waits for a coordinator that has ended.
void Coordinator::give_up(int number, const std::string& reason) noexcept {
  const RoundVerdict verdict{
      .next = "fail",
      .fault = {.node = "",
                .text = "the rendezvous of the hosts failed: " + reason,
                .kind = RoundFaultKind::kFinal},
      .round = number};
  try {
    store_->set(kOverKey, to_bytes(encode(verdict)), kOwnStoreAnswers);
    store_->set(RoundKeys(number).verdict(), to_bytes(encode(verdict)),
                kOwnStoreAnswers);
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
}

void Coordinator::run() {
  int number = 0;
  try {
    std::vector<NodeCard> nodes;
    for (bool again = true; again; ++number) {
      Round round(*this, number, std::move(nodes));
      again = round.gather();
      if (again) {
        round.begin();
        again = round.end();
      }
      if (!again) return part(round, number);
      nodes = round.take_nodes();
    }
  } catch (const Cancelled&) {
    // The launcher ends, and its connection with it.
  } catch (const std::exception& error) {
    give_up(number, error.what());
  }
}

// Waits until the launchers of the last round have read how the job ended, and
// those that wait for another round.
void Coordinator::part(Round& last, int number) {
  const Deadline deadline(kReaders);
  last.wait_for_readers(deadline);
  try {
    Round spare(*this, number + 1, {});
    spare.take_present();
    spare.wait_for_readers(deadline);
  } catch (const InvalidArgument& error) {
    // An unreadable card does not change how the job ended.
    log(LogLevel::kWarn, error.what());
  }
}

}  // namespace lockstep
