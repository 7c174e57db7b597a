#include "src/launch/nodes/coordinator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/base/secret.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/store/tcp_store_server.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// Every answer of a store in this process.
constexpr auto kStoreAnswers = 10s;
// How long the launchers may take to read how the job ended.
constexpr auto kReaders = 10s;

// Does not wait: the second key is there since the first launcher came.
bool is_set(Store& store, const std::string& key) {
  const std::vector<std::string> keys{key, std::string(kAgreementKey)};
  return store.wait_any(keys, kStoreAnswers) == 0;
}

}  // namespace

// A name of this host may mean loopback here and another address elsewhere.
FileDescriptor listen_for_hosts(const TcpEndpoint& endpoint) {
  return is_loopback_everywhere(endpoint.host)
             ? listen_at(endpoint.host, endpoint.port)
             : listen_everywhere(endpoint.port);
}

// One generation of workers.
class Coordinator::Round {
 public:
  Round(Coordinator& coordinator, int number)
      : store_(*coordinator.store_),
        options_(coordinator.options_),
        cancelled_(coordinator.cancelled_),
        number_(number),
        keys_(number) {}

  // Collects the launchers of this round, of which `earlier` took part in the
  // one before. Returns false if too few come.
  bool gather(const std::vector<NodeCard>& earlier);
  // Tells the launchers that too few came.
  void refuse();
  // Serves the workers' store and tells the launchers to begin.
  void begin();
  // Waits for the end of the round, and publishes what follows.
  RoundVerdict end();
  // Waits until the launchers have read that.
  void wait_for_readers();

  // The launchers that are not lost.
  std::vector<NodeCard> survivors() {
    drop_lost();
    return nodes_;
  }

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

  bool is_lost(const NodeCard& node) {
    return is_set(store_, lost_key(node.id));
  }

  void take_arrival();
  void drop_lost();
  bool has_come(const NodeCard& node) const;
  bool is_complete(const std::vector<NodeCard>& earlier) const;
  void put_in_order(const std::vector<NodeCard>& earlier);
  bool all_end_well();
  void report_lost(const NodeCard& node);
  void wait_for_all(std::string (RoundKeys::*key)(int) const,
                    Deadline deadline);

  Store& store_;
  const CoordinatorOptions& options_;
  const Cancellation& cancelled_;
  const int number_;
  const RoundKeys keys_;
  int arrived_ = 0;  // cards that were read
  std::vector<NodeCard> nodes_;
  std::unique_ptr<TcpStoreServer> workers_store_;
};

void Coordinator::Round::take_arrival() {
  nodes_.push_back(decode<NodeCard>(
      to_text(store_.get(keys_.card(arrived_++), kStoreAnswers))));
}

void Coordinator::Round::drop_lost() {
  std::erase_if(nodes_, [this](const NodeCard& node) { return is_lost(node); });
}

bool Coordinator::Round::has_come(const NodeCard& node) const {
  return std::ranges::find(nodes_, node.id, &NodeCard::id) != nodes_.end();
}

// A first round waits a while for the most hosts. A restart waits for those of
// the round before, and takes others that have come meanwhile.
bool Coordinator::Round::is_complete(
    const std::vector<NodeCard>& earlier) const {
  const int count = static_cast<int>(nodes_.size());
  if (earlier.empty()) return count >= options_.most;
  return count >= options_.least &&
         std::ranges::all_of(
             earlier, [this](const NodeCard& node) { return has_come(node); });
}

bool Coordinator::Round::gather(const std::vector<NodeCard>& earlier) {
  const Deadline too_late(options_.join_timeout);
  Deadline last_call = Deadline::never();
  while (!is_complete(earlier)) {
    const bool enough = static_cast<int>(nodes_.size()) >= options_.least;
    if (!enough)
      last_call = Deadline::never();
    else if (last_call.is_never())
      last_call = Deadline(options_.last_call);
    if (first_of({keys_.card(arrived_)}, std::min(too_late, last_call)))
      take_arrival();
    else if (!enough && too_late.expired())
      return false;
    drop_lost();
    // The wait may have been for others while one of these was lost.
    if (enough && (last_call.expired() || too_late.expired()) &&
        static_cast<int>(nodes_.size()) >= options_.least)
      break;
  }
  put_in_order(earlier);
  return true;
}

// Hosts of the round before stay; of the others, those that came first. The
// order is that of --node-rank, then of the round before, then of coming.
void Coordinator::Round::put_in_order(const std::vector<NodeCard>& earlier) {
  const auto before = [&](const NodeCard& node) {
    return std::ranges::find(earlier, node.id, &NodeCard::id) - earlier.begin();
  };
  std::ranges::stable_sort(nodes_, {}, before);
  if (static_cast<int>(nodes_.size()) > options_.most)
    nodes_.resize(static_cast<std::size_t>(options_.most));
  std::ranges::stable_sort(nodes_, {}, [&](const NodeCard& node) {
    return node.node_rank < 0 ? options_.most : node.node_rank;
  });
}

void Coordinator::Round::refuse() {
  std::vector<std::string> came;
  for (const NodeCard& node : nodes_) came.push_back(node.host);
  store_.set(
      keys_.refusal(),
      to_bytes(fmt::format(
          "only {} of at least {} hosts came to the rendezvous within {:.0f} s"
          "\n  came:    {}\n"
          "  next:    start lockstep run on the other hosts too, with the same "
          "--rdzv-endpoint and --rdzv-id",
          nodes_.size(), options_.least,
          std::chrono::duration<double>(options_.join_timeout).count(),
          came.empty() ? "none" : fmt::format("{}", fmt::join(came, ", ")))),
      kStoreAnswers);
}

void Coordinator::Round::begin() {
  const std::string token = random_hex(sizeof(Secret));
  workers_store_ = std::make_unique<TcpStoreServer>(
      listen_for_hosts({.host = options_.host, .port = 0}), token);
  const std::string url = std::string(kTcpScheme) +
                          host_and_port(options_.host, workers_store_->port());
  store_.set(keys_.plan(),
             to_bytes(encode(RoundPlan{.nodes = nodes_,
                                       .store_url = url,
                                       .token = token,
                                       .restarts = number_})),
             kStoreAnswers);
}

void Coordinator::Round::report_lost(const NodeCard& node) {
  const RoundFault fault{
      .node = node.id,
      .text = fmt::format("the launcher on {} ended, or the link to that host "
                          "is down",
                          node.host)};
  store_.compare_and_set(keys_.fault(), std::nullopt, to_bytes(encode(fault)),
                         kStoreAnswers);
}

// Waits until every host's workers have ended well; false once a fault stands
// in the store.
bool Coordinator::Round::all_end_well() {
  std::vector<int> working;
  for (int i = 0; i < static_cast<int>(nodes_.size()); ++i)
    working.push_back(i);
  while (!working.empty()) {
    std::vector<std::string> keys{keys_.fault()};
    for (const int node : working) keys.push_back(keys_.done(node));
    for (const NodeCard& node : nodes_) keys.push_back(lost_key(node.id));
    const auto found = static_cast<std::size_t>(
        store_.wait_any(keys, Deadline::never(), &cancelled_));
    if (found > working.size()) report_lost(nodes_[found - 1 - working.size()]);
    if (found == 0 || found > working.size()) return false;
    working.erase(working.begin() + static_cast<std::ptrdiff_t>(found - 1));
  }
  return true;
}

// Of each host that is not lost.
void Coordinator::Round::wait_for_all(std::string (RoundKeys::*key)(int) const,
                                      Deadline deadline) {
  for (int i = 0; i < static_cast<int>(nodes_.size()); ++i)
    first_of(
        {(keys_.*key)(i), lost_key(nodes_[static_cast<std::size_t>(i)].id)},
        deadline);
}

RoundVerdict Coordinator::Round::end() {
  RoundVerdict verdict{.next = "finish", .fault = {}};
  if (!all_end_well()) {
    wait_for_all(&RoundKeys::ended, options_.end_timeout);
    // Only now: meanwhile a user may have asked for the end.
    const auto fault =
        decode<RoundFault>(to_text(store_.get(keys_.fault(), kStoreAnswers)));
    const bool again = !fault.final && number_ < options_.max_restarts;
    verdict = {.next = again ? "restart" : "fail", .fault = fault};
  }
  if (verdict.next != "restart")
    store_.set(kOverKey, to_bytes(verdict.next), kStoreAnswers);
  store_.set(keys_.verdict(), to_bytes(encode(verdict)), kStoreAnswers);
  return verdict;
}

void Coordinator::Round::wait_for_readers() {
  wait_for_all(&RoundKeys::read, kReaders);
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
  const RoundFault fault{
      .node = "",
      .text = "the rendezvous of the hosts failed: " + reason,
      .final = true};
  try {
    const RoundKeys keys(number);
    store_->set(keys.refusal(), to_bytes(fault.text), kStoreAnswers);
    store_->set(keys.verdict(),
                to_bytes(encode(RoundVerdict{.next = "fail", .fault = fault})),
                kStoreAnswers);
    store_->set(kOverKey, to_bytes("fail"), kStoreAnswers);
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
}

void Coordinator::run() {
  int number = 0;
  try {
    std::vector<NodeCard> earlier;
    for (;; ++number) {
      Round round(*this, number);
      if (!round.gather(earlier)) return round.refuse();
      round.begin();
      const RoundVerdict verdict = round.end();
      round.wait_for_readers();
      if (verdict.next != "restart") return;
      earlier = round.survivors();
    }
  } catch (const Cancelled&) {
    // The launcher ends, and its connection with it.
  } catch (const std::exception& error) {
    give_up(number, error.what());
  }
}

}  // namespace lockstep
