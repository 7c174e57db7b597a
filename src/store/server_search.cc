#include "src/store/server_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/net/wait.h"
#include "src/store/store_call.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// How long a port may take to answer: twice as long after each pass that met
// silence, because the right server may be busy.
constexpr std::chrono::milliseconds kFirstPatience = 1s;
constexpr std::chrono::milliseconds kMostPatience = 8s;
const char* const kSilent = "a program that does not answer";
constexpr auto kWarnAfter = 10s;

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

// The passes over the ports, and what the last ones found there.
class Passes {
 public:
  Passes(const ServerPlaces& places, const ClientIdentity& identity)
      : places_(places), identity_(identity), findings_(places.ports.size()) {}

  FoundServer run(Deadline deadline) {
    bool silence = false;
    for (std::size_t i = 0; i < places_.ports.size(); ++i) {
      const int port = places_.ports[i];
      Finding found = look(port, std::min<Deadline>(patience_, deadline));
      if (found.connection) return {port, std::move(found.connection)};
      silence = silence || found.what == kSilent;
      // A look without time says nothing.
      if (findings_[i].empty() || !deadline.expired())
        findings_[i] = std::move(found.what);
    }
    if (silence) patience_ = std::min(2 * patience_, kMostPatience);
    return {};
  }

  // One line per port.
  std::string findings() const {
    std::string text;
    for (std::size_t i = 0; i < findings_.size(); ++i)
      text += fmt::format("\n  found:   at port {}: {}", places_.ports[i],
                          findings_[i]);
    return text;
  }

 private:
  struct Finding {
    std::string what = {};
    std::unique_ptr<TcpConnection> connection = {};
  };

  Finding look(int port, Deadline deadline) const {
    const std::string url = "tcp://" + host_and_port(places_.host, port);
    try {
      FileDescriptor socket = connect_once(places_.host, port, deadline);
      return {.connection = std::make_unique<TcpConnection>(
                  std::move(socket), identity_, StoreCall("open_store", url),
                  deadline, nullptr)};
    } catch (const ConnectionRefused&) {
      return {"no program"};
    } catch (const Timeout&) {
      return {kSilent};
    } catch (const NetworkError& error) {
      return {first_line(error.what())};
    }
  }

  const ServerPlaces& places_;
  const ClientIdentity& identity_;
  std::chrono::milliseconds patience_ = kFirstPatience;
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
              identity.job, places.host, passes.findings()));
    if (backoff.wait(deadline) == WaitResult::kReady) continue;
    const std::chrono::duration<double> waited = Deadline::Clock::now() - start;
    throw Timeout(fmt::format(
        "open_store: found no store of \"{}\" on {} within {:.1f} s{}\n"
        "  likely:  rank 0 has not started, has died or is on another host, or "
        "the ranks have different tokens\n"
        "  next:    read rank 0's log; give every rank the same "
        "LOCKSTEP_TOKEN",
        identity.job, places.host, waited.count(), passes.findings()));
  }
}

}  // namespace lockstep
