#include "src/comm/group/bootstrap.h"

#include <fmt/format.h>

#include <array>
#include <chrono>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/base/secret.h"
#include "src/comm/wire/transport_plugin.h"
#include "src/store/host_address.h"

namespace lockstep {
namespace {

constexpr std::size_t kMessageBytes = 1024;

[[noreturn]] void refuse(const Membership& membership, const std::string& why) {
  throw InvalidArgument(fmt::format(
      "init_process_group: mpirun started this as rank {} of {}, but neither "
      "the environment nor MPI gives rank 0's address\n"
      "  likely:  {}\n"
      "  next:    pass -x MASTER_ADDR=HOST -x MASTER_PORT=PORT to mpirun: an "
      "address of rank 0 that all ranks can reach, and a free port there",
      membership.rank, membership.world_size, why.substr(0, why.find('\n'))));
}

const LockstepTransportTable& mpi(const Membership& membership,
                                  const Settings& settings) {
  try {
    return load_transport("mpi", settings);
  } catch (const InvalidArgument& error) {
    refuse(membership, error.what());
  }
}

Bootstrap serve(const Settings& settings) {
  Bootstrap made;
  // Other processes on the network may know the port, but not the token.
  made.token =
      settings.token.empty() ? random_hex(sizeof(Secret)) : settings.token;
  made.server = std::make_unique<TcpStoreServer>(choose_host_address(settings),
                                                 0, made.token);
  made.store_url = made.server->url();
  return made;
}

// The message carries the token only if the ranks do not have it already.
std::string message_of(const Bootstrap& made, const Settings& settings) {
  return made.store_url + (settings.token.empty() ? " " + made.token : "");
}

void read_message(const std::string& text, const Settings& settings,
                  Bootstrap& made) {
  const std::size_t space = text.find(' ');
  made.store_url = text.substr(0, space);
  made.token =
      space == std::string::npos ? settings.token : text.substr(space + 1);
}

}  // namespace

Bootstrap bootstrap_by_mpi(const Membership& membership,
                           const Settings& settings) {
  using std::chrono::microseconds;
  const LockstepTransportTable& table = mpi(membership, settings);
  if (table.bootstrap == nullptr)
    refuse(membership, "the plug-in liblockstep_mpi.so has no bootstrap()");
  Bootstrap made;
  if (membership.rank == 0) made = serve(settings);
  std::array<char, kMessageBytes> text{};
  message_of(made, settings).copy(text.data(), text.size() - 1);
  LockstepTransportOutcome outcome{};
  const auto timeout =
      std::chrono::duration_cast<microseconds>(settings.rendezvous_timeout);
  const auto status =
      table.bootstrap(text.data(), text.size(), timeout.count(), &outcome);
  if (status == kTransportNotYet)
    throw Timeout(fmt::format(
        "init_process_group: not all of the {} ranks that mpirun started came "
        "within {:.1f} s; this is rank {}\n"
        "  next:    read the other ranks' output; every process that mpirun "
        "starts must call init_process_group",
        membership.world_size, settings.rendezvous_timeout.count(),
        membership.rank));
  if (status != kTransportDone) refuse(membership, outcome.text);
  read_message(text.data(), settings, made);
  if (log_enabled(LogLevel::kDebug))
    log(LogLevel::kDebug,
        fmt::format("the ranks meet at {}, as MPI says", made.store_url));
  return made;
}

}  // namespace lockstep
