#include "src/store/tcp_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/base/mutex.h"
#include "src/base/own_process.h"
#include "src/base/printable.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/net/wait.h"
#include "src/net/wake_up.h"
#include "src/store/request_store.h"
#include "src/store/server_search.h"
#include "src/store/tcp_connection.h"
#include "src/store/tcp_store_server.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// A store of the own job, on this host, answers sooner.
constexpr auto kOwnAnswer = 1s;

// Not through the name that other ranks use, which may route through another
// host.
TcpEndpoint endpoint_here(const std::string& bind, int port) {
  return {bind.empty() ? "127.0.0.1" : bind, port};
}

// The url may be right although this host lacks the address, behind NAT or a
// mapped port; but a wrong address is a common mistake.
void warn_of_foreign_address(const TcpEndpoint& endpoint) {
  if (has_one_of(resolve(endpoint.host, endpoint.port))) return;
  log(LogLevel::kWarn,
      fmt::format(
          "this process serves the store of {}, which is not an address of "
          "this host: unless it is forwarded here, no other rank will "
          "find the store (MASTER_ADDR names the host of rank 0)",
          host_and_port(endpoint.host, endpoint.port)));
}

std::unique_ptr<TcpStoreServer> serve_at(int port, const StoreOptions& options,
                                         const std::string& job = {}) {
  if (options.bind.empty())
    return std::make_unique<TcpStoreServer>(listen_everywhere(port),
                                            options.token,
                                            TcpStoreServerOptions{.job = job});
  try {
    return std::make_unique<TcpStoreServer>(options.bind, port, options.token,
                                            TcpStoreServerOptions{.job = job});
  } catch (const PortTaken&) {
    throw;
  } catch (const NetworkError& error) {
    throw NetworkError(fmt::format("{} (LOCKSTEP_STORE_BIND is \"{}\")",
                                   error.what(), options.bind));
  }
}

// Throws if a store of the same job, with the same token, is at `endpoint`: the
// ranks of two programs of one job would mix.
void refuse_second_server(const TcpEndpoint& endpoint,
                          const ClientIdentity& identity, Deadline deadline) {
  const StorePlace place{"tcp://" +
                         host_and_port(endpoint.host, endpoint.port)};
  const Deadline soon = std::min<Deadline>(kOwnAnswer, deadline);
  try {
    const TcpConnection own(connect_once(endpoint.host, endpoint.port, soon),
                            identity, StoreCall("open_store", place), soon,
                            nullptr);
  } catch (const Timeout&) {
    return;
  } catch (const NetworkError&) {
    return;
  }
  throw InvalidArgument(fmt::format(
      "could not serve the store of \"{}\": rank 0 of this job serves at port "
      "{} of this host already\n"
      "  likely:  another program of the same job runs at the same time, or "
      "the job was started twice\n"
      "  next:    run them one after the other, or give each program a "
      "MASTER_PORT of its own",
      printable(identity.job), endpoint.port));
}

std::unique_ptr<TcpStoreServer> serve_at_first_free(
    const ServerPlaces& places, const StoreOptions& options,
    const ClientIdentity& identity) {
  std::unique_ptr<TcpStoreServer> server;
  std::vector<int> taken_ports;
  for (const int port : places.ports) {
    try {
      server = serve_at(port, options, identity.job);
      break;
    } catch (const PortTaken& taken) {
      log(LogLevel::kInfo, taken.what());
      taken_ports.push_back(port);
    }
  }
  // Only now, because a program that does not answer would delay the clients.
  for (const int port : taken_ports)
    refuse_second_server(endpoint_here(options.bind, port), identity,
                         options.deadline);
  if (server) return server;
  throw NetworkError(fmt::format(
      "could not serve the store of \"{}\": each of the ports {} is taken on "
      "this host\n"
      "  next:    end the programs that hold them (ss -ltnp shows them), or "
      "give torchrun another --master-port or --rdzv-endpoint, and srun's "
      "ranks a MASTER_PORT",
      printable(identity.job), fmt::join(places.ports, ", ")));
}

// A server leaves connections pending when it has no descriptor for them. With
// our own server there must be a descriptor for each of our ends.
void check_room_for_own_client() { const std::array<WakeUp, 2> room; }

// Every call has its own connection while it lasts, from a pool that grows to
// the largest number in use at once. A call that gives up closes its
// connection, which also ends the server's work for it. Only the last will has
// a permanent connection, because the connection's end executes it.
class TcpStore final : public RequestStore {
 public:
  using Connection = std::unique_ptr<TcpConnection>;

  // Errors name `endpoint`; the store reaches its own server directly.
  TcpStore(TcpEndpoint endpoint, const StoreOptions& options,
           ClientIdentity identity, std::unique_ptr<TcpStoreServer> server);
  // The client of a server that a search has found. Errors name `endpoint`; the
  // store reaches the address that answered.
  TcpStore(const TcpEndpoint& endpoint, ClientIdentity identity,
           FoundServer found);

 private:
  Bytes carry_out(const StoreCall& call, Request& request, Deadline deadline,
                  const Cancellation* cancellation) override;
  Bytes carry_out_on_will(const StoreCall& call, Request& request,
                          Deadline deadline);
  Connection introduce(FileDescriptor socket, const StoreCall& call,
                       Deadline deadline, const Cancellation* cancellation);
  FileDescriptor connect_now(const StoreCall& call, Deadline deadline,
                             const Cancellation* cancellation);
  Connection connect(const StoreCall& call, Deadline deadline,
                     const Cancellation* cancellation);
  Connection take_connection(const StoreCall& call, Deadline deadline,
                             const Cancellation* cancellation);

  // Destroyed last: the connections close before our own server, if any.
  const std::unique_ptr<TcpStoreServer> server_;
  const TcpEndpoint endpoint_;
  const ClientIdentity identity_;
  std::string server_name_;  // set once, before the object is shared

  Mutex mutex_;
  std::vector<Connection> idle_ LOCKSTEP_GUARDED_BY(mutex_);

  Mutex will_mutex_;
  Connection will_ LOCKSTEP_GUARDED_BY(will_mutex_);
};

TcpStore::TcpStore(TcpEndpoint endpoint, const StoreOptions& options,
                   ClientIdentity identity,
                   std::unique_ptr<TcpStoreServer> server)
    : RequestStore("tcp://" + host_and_port(endpoint.host, endpoint.port)),
      server_(std::move(server)),
      endpoint_(server_ ? endpoint_here(options.bind, server_->port())
                        : std::move(endpoint)),
      identity_(std::move(identity)) {
  const StoreCall call("open_store", place());
  // Only here does a client wait for its server to come up. Later, a server
  // that refuses connections has died.
  idle_.push_back(
      introduce(connect_to(endpoint_.host, endpoint_.port, options.deadline),
                call, options.deadline, nullptr));
  server_name_ = idle_.back()->server();
}

TcpStore::TcpStore(const TcpEndpoint& endpoint, ClientIdentity identity,
                   FoundServer found)
    : RequestStore("tcp://" + host_and_port(endpoint.host, endpoint.port)),
      endpoint_(std::move(found.endpoint)),
      identity_(std::move(identity)),
      server_name_(found.connection->server()) {
  idle_.push_back(std::move(found.connection));
}

Bytes TcpStore::carry_out(const StoreCall& call, Request& request,
                          Deadline deadline, const Cancellation* cancellation) {
  if (request.kind == RequestKind::kSetLastWill ||
      request.kind == RequestKind::kWithdrawLastWill)
    return carry_out_on_will(call, request, deadline);
  Connection connection = take_connection(call, deadline, cancellation);
  Answer answer = connection->call(call, request, deadline, cancellation);
  {
    const MutexLock lock(mutex_);
    idle_.push_back(std::move(connection));
  }
  return take_value(std::move(answer));
}

TcpStore::Connection TcpStore::take_connection(
    const StoreCall& call, Deadline deadline,
    const Cancellation* cancellation) {
  {
    const MutexLock lock(mutex_);
    if (!idle_.empty()) {
      Connection connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  return connect(call, deadline, cancellation);
}

// A server with too many unauthenticated connections drops some, possibly this
// one.
TcpStore::Connection TcpStore::introduce(FileDescriptor socket,
                                         const StoreCall& call,
                                         Deadline deadline,
                                         const Cancellation* cancellation) {
  constexpr int kAttempts = 20;
  Backoff backoff(10ms, 500ms);
  for (int attempt = 1;; ++attempt) {
    try {
      return std::make_unique<TcpConnection>(std::move(socket), identity_, call,
                                             deadline, cancellation);
    } catch (const ConnectionDropped&) {
      if (attempt == kAttempts) throw;
    }
    call.check(backoff.wait(deadline, cancellation));
    socket = connect_now(call, deadline, cancellation);
  }
}

FileDescriptor TcpStore::connect_now(const StoreCall& call, Deadline deadline,
                                     const Cancellation* cancellation) {
  try {
    return connect_once(endpoint_.host, endpoint_.port, deadline, cancellation);
  } catch (const ConnectionRefused& error) {
    call.fail_as_ended(error.what());
  } catch (const NetworkError& error) {
    if (deadline.expired()) call.check(WaitResult::kTimedOut);
    call.fail_connection(error.what());
  }
}

TcpStore::Connection TcpStore::connect(const StoreCall& call, Deadline deadline,
                                       const Cancellation* cancellation) {
  auto connection = introduce(connect_now(call, deadline, cancellation), call,
                              deadline, cancellation);
  // Another server does not have the keys of this one.
  if (connection->server() != server_name_)
    call.fail_as_ended(
        "the server has ended, and another one has taken its place");
  return connection;
}

// A broken connection has executed its will. A new will takes a new connection;
// withdrawing one comes too late. A Timeout does not close the connection,
// because that would declare this client dead.
Bytes TcpStore::carry_out_on_will(const StoreCall& call, Request& request,
                                  Deadline deadline) {
  const MutexLock lock(will_mutex_);
  if (!will_ && request.kind == RequestKind::kWithdrawLastWill) return {};
  const bool is_used = will_ != nullptr;
  if (!will_) will_ = connect(call, deadline, nullptr);
  try {
    return take_value(will_->call(call, request, deadline, nullptr));
  } catch (const NetworkError&) {
    will_.reset();
    if (!is_used || request.kind == RequestKind::kWithdrawLastWill) throw;
  }
  will_ = connect(call, deadline, nullptr);
  return take_value(will_->call(call, request, deadline, nullptr));
}

}  // namespace

std::shared_ptr<Store> open_tcp_store(TcpEndpoint endpoint,
                                      const StoreOptions& options) {
  check_token(options.token);
  std::unique_ptr<TcpStoreServer> server;
  if (options.serve) {
    if (options.bind.empty()) warn_of_foreign_address(endpoint);
    server = serve_at(endpoint.port, options);
    endpoint.port = server->port();
    check_room_for_own_client();
  }
  return make_shared_in_own_process<TcpStore>(std::move(endpoint), options,
                                              ClientIdentity{options.token},
                                              std::move(server));
}

std::shared_ptr<Store> open_tcp_store(const DerivedEndpoint& endpoint,
                                      const StoreOptions& options) {
  check_token(options.token);
  const ClientIdentity identity{options.token, endpoint.job};
  TcpEndpoint place = endpoint.first;
  ServerPlaces places{place.host, {place.port}};
  places.ports.insert(places.ports.end(), endpoint.more_ports.begin(),
                      endpoint.more_ports.end());
  if (!options.serve) {
    FoundServer found = find_server(places, identity, options.deadline);
    place.port = found.endpoint.port;
    return make_shared_in_own_process<TcpStore>(place, identity,
                                                std::move(found));
  }
  if (options.bind.empty()) warn_of_foreign_address(place);
  auto server = serve_at_first_free(places, options, identity);
  place.port = server->port();
  check_room_for_own_client();
  return make_shared_in_own_process<TcpStore>(place, options, identity,
                                              std::move(server));
}

}  // namespace lockstep
