#include "src/launch/nodes/coordinator.h"

#include <utility>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/launch/nodes/host_round.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// How long the launchers may take to read how the job ended.
constexpr auto kReaders = 10s;

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
      .fault = {.text = "the rendezvous of the hosts failed: " + reason,
                .is_final = true},
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
    const HostRound::Parts parts{*store_, options_, cancelled_};
    for (bool again = true; again; ++number) {
      HostRound round(parts, number, std::move(nodes));
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
void Coordinator::part(HostRound& last, int number) {
  const Deadline deadline(kReaders);
  last.wait_for_readers(deadline);
  try {
    HostRound spare({*store_, options_, cancelled_}, number + 1, {});
    spare.take_present();
    spare.wait_for_readers(deadline);
  } catch (const InvalidArgument& error) {
    // An unreadable card does not change how the job ended.
    log(LogLevel::kWarn, error.what());
  }
}

}  // namespace lockstep
