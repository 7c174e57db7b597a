#include "src/store/tcp_store_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/base/secret.h"
#include "src/base/signals_blocked.h"
#include "src/net/epoll.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/net/wake_up.h"
#include "src/store/server_connection.h"
#include "src/store/store_protocol.h"
#include "src/store/store_service.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Client = StoreService::Client;
using State = ServerConnection::State;

// The most connections to accept before existing ones are served again.
constexpr int kAcceptedAtOnce = 64;
// How long the server accepts no connection when the process is out of file
// descriptors and no unauthenticated connection can be closed. Pending
// connections are not refused.
constexpr auto kAcceptPause = 100ms;
constexpr auto kBetweenWarnings = 10s;

// The tags of the two descriptors that are no client's.
constexpr Client kStop = 0;
constexpr Client kListener = std::numeric_limits<Client>::max();

// The two kinds of unauthenticated connections: those that have not sent their
// challenge or were refused, and those whose proof the server awaits.
constexpr std::array kBeforeChallenge{State::kRefused, State::kPreamble,
                                      State::kChallenge};
constexpr std::array kBeforeProof{State::kProof};

// The serving process may be a rank, which needs descriptors itself, so
// unauthenticated connections get at most a quarter of its descriptors.
std::ptrdiff_t most_strangers(const TcpStoreServerOptions& options) {
  constexpr rlim_t kShare = 4;
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return options.strangers;
  return static_cast<std::ptrdiff_t>(std::min(
      static_cast<rlim_t>(options.strangers), descriptors.rlim_cur / kShare));
}

std::thread start_without_signals(auto body) {
  const SignalsBlocked blocked;
  return std::thread(std::move(body));
}

}  // namespace

// One thread around one epoll instance: the loop does a bounded amount of work
// for a connection, whatever its client does, and continues. Connections
// without an event cost nothing.
class TcpStoreServer::Loop {
 public:
  Loop(FileDescriptor listener, std::string token,
       const TcpStoreServerOptions& options)
      : listener_(std::move(listener)),
        token_(std::move(token)),
        options_(options) {
    epoll_.add(stop_.descriptor(), EPOLLIN, kStop);
    epoll_.add(listener_.get(), EPOLLIN, kListener);
    thread_ = start_without_signals([this] { run(); });
  }

  ~Loop() {
    stop_.signal();
    thread_.join();
  }

 private:
  struct Member {
    ServerConnection connection;
    short watched = 0;  // the events that epoll_ reports
  };

  void run();
  bool serve_once();
  Deadline next_deadline() const;
  void accept_some();
  void watch(int descriptor);
  void make_do(const SystemError& shortage);
  void make_room();
  std::ptrdiff_t count_in(std::span<const State> states) const;
  bool end_one(std::span<const State> states);
  void serve(Client client, Member& member);
  void note_state(Client client, Member& member);
  void converse(Client client, ServerConnection& connection);
  void read_preamble_of(ServerConnection& connection);
  void read_proof_of(ServerConnection& connection);
  void tell_of_wrong_token();
  void deliver(const std::vector<StoreService::Reply>& replies);
  void end_overdue();
  void remove_ended();

  FileDescriptor listener_;
  const std::string token_;
  const std::string name_ = random_hex(12);  // unique to this server
  const TcpStoreServerOptions options_;
  WakeUp stop_;
  StoreService service_;
  std::map<Client, Member> members_;
  // Those that are not welcome yet, in order of arrival.
  std::set<Client> strangers_;
  std::vector<Client> ended_;
  Client last_client_ = 0;
  Deadline accept_again_ = Deadline(0ms);
  bool told_of_shortage_ = false;
  int untold_wrong_tokens_ = 0;
  Deadline tell_again_ = Deadline(0ms);
  Epoll epoll_;
  bool accepting_ = true;
  std::thread thread_;  // last: it uses all the others
};

void TcpStoreServer::Loop::run() {
  try {
    while (serve_once()) continue;
  } catch (const std::exception& error) {
    log(LogLevel::kError,
        fmt::format("the store's server has ended: {}", error.what()));
  }
  // In both cases clients must not wait for this server any longer. It closes
  // the listener first: a client whose connection ends may look for a new
  // server at the same address and must not find this one.
  listener_.reset();
  members_.clear();
}

bool TcpStoreServer::Loop::serve_once() {
  const bool accepting = accept_again_.expired();
  if (accepting != accepting_)
    epoll_.change(listener_.get(), accepting ? std::uint32_t{EPOLLIN} : 0,
                  kListener);
  accepting_ = accepting;
  bool has_arrivals = false;
  for (const auto& [tag, events] : epoll_.wait(next_deadline())) {
    if (tag == kStop) return false;
    if (tag == kListener) {
      has_arrivals = true;
      continue;
    }
    const auto found = members_.find(tag);
    if (found != members_.end()) serve(tag, found->second);
  }
  if (has_arrivals) accept_some();
  end_overdue();
  remove_ended();
  return true;
}

Deadline TcpStoreServer::Loop::next_deadline() const {
  Deadline next = Deadline::never();
  if (!accept_again_.expired()) next = accept_again_;
  for (const Client client : strangers_)
    next = std::min(next, members_.at(client).connection.introduction());
  return next;
}

void TcpStoreServer::Loop::accept_some() {
  int accepted = 0;
  try {
    while (accepted < kAcceptedAtOnce) {
      FileDescriptor socket = accept_from(listener_.get());
      if (!socket) break;
      ++accepted;
      told_of_shortage_ = false;
      const int descriptor = socket.get();
      members_.try_emplace(
          ++last_client_,
          Member{{std::move(socket), Deadline(options_.introduction)}, POLLIN});
      strangers_.insert(last_client_);
      watch(descriptor);
    }
  } catch (const SystemError& error) {
    // The kernel checks for a descriptor first, so perhaps no connection is
    // pending.
    if (accepted == 0) make_do(error);
  }
  make_room();
}

// Watches the newest member; ends it where the kernel cannot.
void TcpStoreServer::Loop::watch(int descriptor) {
  try {
    epoll_.add(descriptor, EPOLLIN, last_client_);
  } catch (const SystemError&) {
    Member& member = members_.at(last_client_);
    member.connection.end();
    note_state(last_client_, member);
    throw;
  }
}

// A connection is pending and no descriptor is free. A client that has sent
// nothing holds a descriptor that a rank may need.
void TcpStoreServer::Loop::make_do(const SystemError& shortage) {
  constexpr std::array kSilent{State::kRefused, State::kPreamble};
  if (!std::exchange(told_of_shortage_, true))
    log(LogLevel::kWarn,
        fmt::format("the store's server lets connections wait: {}",
                    shortage.what()));
  if (!end_one(kSilent)) accept_again_ = Deadline(kAcceptPause);
}

// Each of the two kinds of unauthenticated connections is guaranteed half of
// the room. So neither clients that only connect nor clients that stop half-way
// displace a rank that is connecting, and within a kind the oldest has had the
// most time.
void TcpStoreServer::Loop::make_room() {
  const std::ptrdiff_t most = most_strangers(options_);
  while (true) {
    const std::ptrdiff_t before_challenge = count_in(kBeforeChallenge);
    if (before_challenge + count_in(kBeforeProof) <= most) return;
    if (before_challenge > most / 2)
      end_one(kBeforeChallenge);
    else
      end_one(kBeforeProof);
  }
}

std::ptrdiff_t TcpStoreServer::Loop::count_in(
    std::span<const State> states) const {
  return std::ranges::count_if(strangers_, [&](Client client) {
    const State state = members_.at(client).connection.state();
    return std::ranges::count(states, state) > 0;
  });
}

// Closes the oldest connection in one of `states` after reading its input.
// Returns whether there was one.
bool TcpStoreServer::Loop::end_one(std::span<const State> states) {
  const std::vector<Client> strangers(strangers_.begin(), strangers_.end());
  for (const Client client : strangers) {
    Member& member = members_.at(client);
    const State state = member.connection.state();
    if (std::ranges::count(states, state) == 0) continue;
    serve(client, member);
    if (member.connection.state() == state) {
      member.connection.end();
      note_state(client, member);
    }
    if (member.connection.state() == State::kEnded) return true;
  }
  return false;
}

void TcpStoreServer::Loop::serve(Client client, Member& member) {
  ServerConnection& connection = member.connection;
  if (connection.state() == State::kEnded) return;
  try {
    if (connection.has_unsent())
      connection.flush();
    else
      connection.receive();
    converse(client, connection);
  } catch (const std::exception& error) {
    log(LogLevel::kInfo,
        fmt::format("the store's server closes a connection: {}",
                    error.what()));
    connection.end();
  }
  note_state(client, member);
}

// Call after each use of a connection.
void TcpStoreServer::Loop::note_state(Client client, Member& member) {
  const State state = member.connection.state();
  if (state == State::kWelcome || state == State::kEnded)
    strangers_.erase(client);
  if (state == State::kEnded) {
    ended_.push_back(client);
    return;
  }
  const short events = member.connection.events();
  if (events == member.watched) return;
  member.watched = events;
  epoll_.change(member.connection.descriptor(),
                static_cast<std::uint32_t>(events), client);
}

void TcpStoreServer::Loop::converse(Client client,
                                    ServerConnection& connection) {
  if (connection.state() == State::kPreamble) read_preamble_of(connection);
  if (connection.state() == State::kChallenge)
    if (const auto frame = connection.next_frame())
      connection.introduce(token_, options_.job, parse_secret(*frame));
  if (connection.state() == State::kProof) read_proof_of(connection);
  while (connection.state() == State::kWelcome && !connection.has_unsent()) {
    const auto frame = connection.next_frame();
    if (!frame) return;
    deliver(service_.handle(client, parse_request(*frame)));
  }
}

void TcpStoreServer::Loop::read_preamble_of(ServerConnection& connection) {
  const auto preamble = connection.next_preamble();
  if (!preamble) return;
  const auto version = read_preamble(*preamble);
  if (!version) throw NetworkError("it does not speak the store's protocol");
  connection.send(store_preamble());
  // The client reads our version from our preamble and explains.
  if (*version != kStoreProtocolVersion)
    connection.refuse(
        make_frame(encode(Verdict{false, "another protocol version"})));
}

void TcpStoreServer::Loop::read_proof_of(ServerConnection& connection) {
  const auto frame = connection.next_frame();
  if (!frame) return;
  if (connection.has_proved(token_, options_.job, parse_secret(*frame))) {
    connection.welcome();
    connection.send(make_frame(encode(Verdict{true, name_})));
    return;
  }
  tell_of_wrong_token();
  connection.refuse(make_frame(encode(Verdict{false, "wrong job token"})));
}

// A client that retries repeatedly must not fill the log.
void TcpStoreServer::Loop::tell_of_wrong_token() {
  ++untold_wrong_tokens_;
  if (!tell_again_.expired()) return;
  tell_again_ = Deadline(kBetweenWarnings);
  log(LogLevel::kWarn,
      fmt::format("the store's server turned {} connection{} away: wrong job "
                  "token",
                  untold_wrong_tokens_, untold_wrong_tokens_ == 1 ? "" : "s"));
  untold_wrong_tokens_ = 0;
}

void TcpStoreServer::Loop::deliver(
    const std::vector<StoreService::Reply>& replies) {
  for (const auto& [client, answer] : replies) {
    const auto found = members_.find(client);
    if (found == members_.end()) continue;
    found->second.connection.send(make_frame(encode(answer)));
    note_state(client, found->second);
  }
}

void TcpStoreServer::Loop::end_overdue() {
  const std::vector<Client> strangers(strangers_.begin(), strangers_.end());
  for (const Client client : strangers) {
    Member& member = members_.at(client);
    if (!member.connection.introduction().expired()) continue;
    member.connection.end();
    note_state(client, member);
  }
}

void TcpStoreServer::Loop::remove_ended() {
  // Delivering may break further connections.
  while (!ended_.empty()) {
    const Client gone = ended_.back();
    ended_.pop_back();
    const auto found = members_.find(gone);
    if (found == members_.end()) continue;  // noted twice
    epoll_.remove(found->second.connection.descriptor());
    members_.erase(found);
    deliver(service_.leave(gone));
  }
}

TcpStoreServer::TcpStoreServer(const std::string& host, int port,
                               std::string token,
                               const TcpStoreServerOptions& options) {
  serve(listen_at(host, port), std::move(token), options);
  url_ = "tcp://" + host_and_port(host, port_);
}

TcpStoreServer::TcpStoreServer(FileDescriptor listener, std::string token,
                               const TcpStoreServerOptions& options) {
  serve(std::move(listener), std::move(token), options);
}

TcpStoreServer::~TcpStoreServer() = default;

void TcpStoreServer::serve(FileDescriptor listener, std::string token,
                           const TcpStoreServerOptions& options) {
  check_token(token);
  // An inherited listener may block, and the loop must not wait when a client
  // has left before accept().
  const int flags = ::fcntl(listener.get(), F_GETFL);
  if (flags < 0 || ::fcntl(listener.get(), F_SETFL, flags | O_NONBLOCK) < 0)
    throw SystemError("could not use the socket to listen on", errno);
  const SocketAddress address = local_address(listener.get());
  port_ = address.port();
  url_ = "tcp://" + address.text();
  if (token.empty())
    log(LogLevel::kWarn,
        fmt::format("the store at {} asks for no job token: {} can join the "
                    "job or disturb it (set LOCKSTEP_TOKEN to a random secret, "
                    "the same on every rank, to prevent that)",
                    url_,
                    address.is_loopback()
                        ? "every user of this host"
                        : "every process that reaches this address"));
  loop_ = make_unique_in_own_process<Loop>(std::move(listener),
                                           std::move(token), options);
}

}  // namespace lockstep
