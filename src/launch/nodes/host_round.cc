#include "src/launch/nodes/host_round.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "src/base/exit_codes.h"
#include "src/base/printable.h"
#include "src/base/secret.h"
#include "src/net/socket_address.h"

namespace lockstep {

std::string loss_of(const NodeCard& node) {
  return fmt::format(
      "the launcher on {} ended, or the link to that host is down", node.host);
}

bool HostRound::has_come(const NodeCard& node) const {
  return std::ranges::find(nodes_, node.id, &NodeCard::id) != nodes_.end();
}

// The launcher, of this round or the one before, whose --node-rank `card` has.
const NodeCard* HostRound::with_rank_of(const NodeCard& card) const {
  if (card.node_rank < 0) return nullptr;
  for (const auto* cards : {&nodes_, &earlier_})
    for (const NodeCard& node : *cards)
      if (node.node_rank == card.node_rank && node.id != card.id) return &node;
  return nullptr;
}

NodeCard HostRound::next_card() {
  auto card = decode<NodeCard>(
      to_text(store_.get(keys_.card(arrived_++), kOwnStoreAnswers)));
  card.host = printable(card.host);
  return card;
}

void HostRound::take_arrival() {
  drop_lost();
  NodeCard card = next_card();
  if (const NodeCard* other = with_rank_of(card))
    return refuse(card, fmt::format("--node-rank is {} here, and on {} too\n"
                                    "  next:    give each host another number",
                                    card.node_rank, other->host));
  nodes_.push_back(std::move(card));
}

void HostRound::take_present() {
  while (is_set(store_, keys_.card(arrived_))) take_arrival();
}

// Forgets the launchers that are lost; returns whether there was one. One call
// of the store for each that is lost, and one more.
bool HostRound::drop_lost() {
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
bool HostRound::is_complete() const {
  const int count = static_cast<int>(nodes_.size());
  if (number_ == 0) return count >= options_.most;
  return count >= options_.least &&
         std::ranges::all_of(
             earlier_, [this](const NodeCard& node) { return has_come(node); });
}

// How long the least number of hosts waits for the others. Hosts of the round
// before return, since they are not lost; a short last call leaves none out.
std::chrono::nanoseconds HostRound::patience() const {
  return number_ == 0 ? options_.last_call
                      : std::max(options_.last_call, options_.end_timeout);
}

// Returns false if the deadline passes before anything changes.
bool HostRound::wait_for_arrival(Deadline deadline) {
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

bool HostRound::gather() {
  const Deadline too_late(options_.join_timeout);
  Deadline last_call = Deadline::never();
  while (!is_complete() || drop_lost()) {
    if (const auto fault = end_from_outside()) {
      finish({.next = "fail", .fault = *fault});
      return false;
    }
    const bool enough = static_cast<int>(nodes_.size()) >= options_.least &&
                        ranks() >= options_.min_ranks;
    if (!enough)
      last_call = Deadline::never();
    else if (last_call.is_never())
      last_call = Deadline(patience());
    if (wait_for_arrival(std::min(too_late, last_call)) || drop_lost())
      continue;
    if (enough) break;
    if (static_cast<int>(nodes_.size()) >= options_.least)
      return has_enough_ranks();
    refuse_too_few();
    return false;
  }
  put_in_order();
  return has_enough_ranks();
}

// Hosts of the round before stay; of the others, those that came first. The
// order is that of --node-rank, then of the round before, then of coming.
void HostRound::put_in_order() {
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

void HostRound::refuse(const NodeCard& node, const std::string& reason) {
  store_.set(keys_.refusal(node.id), to_bytes(reason), kOwnStoreAnswers);
}

void HostRound::refuse_all(const std::string& reason,
                           const std::string& summary) {
  for (const NodeCard& node : nodes_) refuse(node, reason);
  finish({.next = "fail", .fault = {.text = summary, .exit_code = kExitUsage}});
}

void HostRound::refuse_too_few() {
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

void HostRound::begin() {
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

void HostRound::report_lost(const NodeCard& node) {
  std::string text = loss_of(node);
  if (!why_it_ends_.empty()) text += "; " + why_it_ends_;
  report_fault(store_, keys_.fault(),
               {.node = node.id, .text = text, .is_of_launcher = true},
               kOwnStoreAnswers);
}

// For the case in which the launcher whose workers ended could not report why.
void HostRound::ensure_fault() {
  // Another host's may still be on its way.
  constexpr std::chrono::seconds kComes{3};
  if (first_of({keys_.fault()}, kComes)) return;
  const auto node = std::ranges::find(nodes_, ended_early_, &NodeCard::id);
  report_fault(
      store_, keys_.fault(),
      {.node = ended_early_,
       .text = fmt::format("the workers on {} ended before the others",
                           node == nodes_.end() ? "a host" : node->host)},
      kOwnStoreAnswers);
}

// Waits until every host's workers have ended well; false once a fault stands
// in the store.
bool HostRound::all_end_well() {
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
      const std::string id = working[found - 1];
      // Its launcher has reported why before.
      ended_early_ = id;
      if (!is_set(store_, keys_.done(id))) return false;
      std::erase(working, id);
      if (in_place_ && dismiss(id)) admit_spares(working);
      continue;
    }
    const auto lost = nodes_.begin() +
                      static_cast<std::ptrdiff_t>(found - 1 - working.size());
    const bool was_working = std::erase(working, lost->id) > 0;
    // In place, workers that have ended well have ended the training.
    if (!in_place_ || (was_working && !goes_on_without(*lost))) {
      report_lost(*lost);
      return false;
    }
    nodes_.erase(lost);
    admit_spares(working);
  }
  return true;
}

std::optional<RoundFault> HostRound::end_from_outside() {
  const std::string key(kEndKey);
  if (!is_set(store_, key)) return std::nullopt;
  return decode<RoundFault>(to_text(store_.get(key, kOwnStoreAnswers)));
}

// Waits for the workers of every host that is not lost; nothing once they have
// ended.
const NodeCard* HostRound::first_that_does_not_end() {
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

bool HostRound::end() {
  if (all_end_well()) {
    finish({.next = "finish", .fault = {}});
    return false;
  }
  const NodeCard* still_there = first_that_does_not_end();
  ensure_fault();
  // Only now: meanwhile another one may have replaced the first.
  auto fault =
      decode<RoundFault>(to_text(store_.get(keys_.fault(), kOwnStoreAnswers)));
  if (still_there != nullptr) {
    fault.text += fmt::format(
        "; the workers on {} did not end, so the job does not restart",
        still_there->host);
    fault.is_final = true;
  }
  if (end_from_outside()) fault.is_final = true;
  if (in_place_) explain(fault);
  if (in_place_ || fault.is_final || number_ >= options_.max_restarts) {
    finish({.next = "fail", .fault = fault});
    return false;
  }
  store_.set(keys_.verdict(),
             to_bytes(encode(RoundVerdict{
                 .next = "restart", .fault = fault, .round = number_})),
             kOwnStoreAnswers);
  return true;
}

void HostRound::finish(RoundVerdict verdict) {
  verdict.round = number_;
  store_.set(kOverKey, to_bytes(encode(verdict)), kOwnStoreAnswers);
  store_.set(keys_.verdict(), to_bytes(encode(verdict)), kOwnStoreAnswers);
}

void HostRound::wait_for_readers(Deadline deadline) {
  if (re_forms_in_place())
    while (is_set(store_, keys_.card(arrived_))) take_spare();
  for (const auto* nodes : {&nodes_, &spares_})
    for (const NodeCard& node : *nodes)
      first_of({read_key(node.id), keys_.lost(node.id)}, deadline);
}

}  // namespace lockstep
