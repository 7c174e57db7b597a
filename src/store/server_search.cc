#include "src/store/server_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/first_line.h"
#include "src/base/log.h"
#include "src/base/printable.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/net/wait.h"
#include "src/store/store_call.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// How long the kernel of an address may take to accept a connection.
constexpr std::chrono::milliseconds kConnectPatience = 1s;
// How long the program there may then take to answer: twice as long after each
// pass that met silence, because the right server may be busy.
constexpr std::chrono::milliseconds kFirstPatience = 1s;
constexpr std::chrono::milliseconds kMostPatience = 8s;
constexpr auto kWarnAfter = 10s;

// What one look at an address has found.
enum class Sight { kServer, kSilence, kOther };

struct Finding {
  Sight sight = Sight::kOther;
  std::string text = {};
  FoundServer server = {};
};

// The passes over the ports, and what the last ones found there.
class Passes {
 public:
  Passes(const ServerPlaces& places, const ClientIdentity& identity)
      : places_(places), identity_(identity), findings_(places.ports.size()) {}

  FoundServer run(Deadline deadline) {
    std::vector<SocketAddress> addresses;
    try {
      addresses = places_.resolver(places_.host, 0);
      failure_.clear();
    } catch (const NetworkError& error) {
      failure_ = first_line(error.what());
    }
    bool silence = false;
    for (std::size_t i = 0; i < places_.ports.size(); ++i) {
      Finding found = look_at_port(places_.ports[i], addresses, deadline);
      if (found.sight == Sight::kServer) return std::move(found.server);
      silence = silence || found.sight == Sight::kSilence;
      // A look without time says nothing.
      if (findings_[i].empty() || !deadline.expired())
        findings_[i] = std::move(found.text);
    }
    if (silence) patience_ = std::min(2 * patience_, kMostPatience);
    return {};
  }

  // One line per port.
  std::string findings() const {
    if (!failure_.empty()) return "\n  found:   " + failure_;
    std::string text;
    for (std::size_t i = 0; i < findings_.size(); ++i)
      text += fmt::format("\n  found:   at port {}: {}", places_.ports[i],
                          findings_[i]);
    return text;
  }

 private:
  // The server, or what was found instead at all addresses.
  Finding look_at_port(int port, const std::vector<SocketAddress>& addresses,
                       Deadline deadline) const {
    Finding all;
    for (const SocketAddress& address : addresses) {
      Finding found = look(address.at_port(port), deadline);
      if (found.sight == Sight::kServer) return found;
      if (found.sight == Sight::kSilence) all.sight = found.sight;
      if (all.text.find(found.text) != std::string::npos) continue;
      all.text += (all.text.empty() ? "" : "; ") + found.text;
    }
    return all;
  }

  Finding look(const SocketAddress& address, Deadline deadline) const {
    const StorePlace place{"tcp://" +
                           host_and_port(places_.host, address.port())};
    try {
      FileDescriptor socket =
          connect_once(address, std::min<Deadline>(kConnectPatience, deadline));
      auto connection = std::make_unique<TcpConnection>(
          std::move(socket), identity_, StoreCall("open_store", place),
          std::min<Deadline>(patience_, deadline), nullptr);
      return {
          .sight = Sight::kServer,
          .server = {{address.host(), address.port()}, std::move(connection)}};
    } catch (const ConnectionRefused&) {
      return {.text = "no program"};
    } catch (const Timeout&) {
      return {Sight::kSilence, "a program that does not answer"};
    } catch (const NetworkError& error) {
      return {.text = first_line(error.what())};
    }
  }

  const ServerPlaces& places_;
  const ClientIdentity& identity_;
  std::chrono::milliseconds patience_ = kFirstPatience;
  std::string failure_;  // to resolve the host's name
  std::vector<std::string> findings_;
};

}  // namespace

FoundServer find_server(const ServerPlaces& places,
                        const ClientIdentity& identity, Deadline deadline) {
  const auto start = Deadline::Clock::now();
  const Deadline warn_at(kWarnAfter);
  Backoff backoff(10ms, 500ms);
  Passes passes(places, identity);
  bool warned = false;
  while (true) {
    FoundServer found = passes.run(deadline);
    if (found.connection) return found;
    if (warn_at.expired() && !std::exchange(warned, true))
      log(LogLevel::kWarn,
          fmt::format(
              "still looking for the store of \"{}\" on {}, which rank 0 "
              "should serve{}",
              printable(identity.job), places.host, passes.findings()));
    if (backoff.wait(deadline) == WaitResult::kReady) continue;
    const std::chrono::duration<double> waited = Deadline::Clock::now() - start;
    throw Timeout(fmt::format(
        "open_store: found no store of \"{}\" on {} within {:.1f} s{}\n"
        "  likely:  rank 0 has not started, has died or is on another host, or "
        "the ranks have different tokens\n"
        "  next:    read rank 0's log; give every rank the same "
        "LOCKSTEP_TOKEN",
        printable(identity.job), places.host, waited.count(),
        passes.findings()));
  }
}

}  // namespace lockstep
