#include "src/comm/group/bootstrap.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <string_view>

#include "lockstep/base/error.h"
#include "src/base/first_line.h"
#include "src/base/log.h"
#include "src/base/secret.h"
#include "src/comm/rendezvous/pmi_client.h"
#include "src/comm/wire/transport_plugin.h"
#include "src/store/host_address.h"

namespace lockstep {
namespace {

constexpr std::size_t kMessageBytes = 1024;
constexpr std::string_view kPmiKey = "lockstep-store";
// Stands between the url and the token; no text in PMI has a space.
constexpr char kUrlEnd = ',';

[[noreturn]] void refuse(const Membership& membership, const Settings& settings,
                         const std::string& why) {
  const bool hydra = settings.launcher == StartedBy::kHydra;
  throw InvalidArgument(fmt::format(
      "init_process_group: mpirun started this as rank {} of {}, but neither "
      "the environment nor {} gives rank 0's address\n"
      "  likely:  {}\n"
      "  next:    pass {} to mpirun: an address of rank 0 that all ranks can "
      "reach, and a free port there",
      membership.rank, membership.world_size, hydra ? "PMI" : "MPI",
      first_line(why),
      hydra ? "-genv MASTER_ADDR HOST -genv MASTER_PORT PORT"
            : "-x MASTER_ADDR=HOST -x MASTER_PORT=PORT"));
}

[[noreturn]] void miss_ranks(const Membership& membership,
                             const Settings& settings) {
  throw Timeout(fmt::format(
      "init_process_group: not all of the {} ranks that mpirun started came "
      "within {:.1f} s; this is rank {}\n"
      "  next:    read the other ranks' output; every process that mpirun "
      "starts must call init_process_group",
      membership.world_size, settings.rendezvous_timeout.count(),
      membership.rank));
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
  return made.store_url + (settings.token.empty() ? kUrlEnd + made.token : "");
}

void read_message(const std::string& text, const Settings& settings,
                  Bootstrap& made) {
  const std::size_t end = text.find(kUrlEnd);
  made.store_url = text.substr(0, end);
  made.token = end == std::string::npos ? settings.token : text.substr(end + 1);
}

const LockstepTransportTable& mpi(const Membership& membership,
                                  const Settings& settings) {
  try {
    return load_transport("mpi", settings);
  } catch (const InvalidArgument& error) {
    refuse(membership, settings, error.what());
  }
}

// The message of rank 0, on every rank.
std::string carry_by_mpi(const Membership& membership, const Settings& settings,
                         const std::string& message) {
  using std::chrono::microseconds;
  const LockstepTransportTable& table = mpi(membership, settings);
  if (table.bootstrap == nullptr)
    refuse(membership, settings,
           "the plug-in liblockstep_mpi.so has no bootstrap()");
  std::array<char, kMessageBytes> text{};
  message.copy(text.data(), text.size() - 1);
  LockstepTransportOutcome outcome{};
  const auto timeout =
      std::chrono::duration_cast<microseconds>(settings.rendezvous_timeout);
  const auto status =
      table.bootstrap(text.data(), text.size(), timeout.count(), &outcome);
  if (status == kTransportNotYet) miss_ranks(membership, settings);
  if (status != kTransportDone) refuse(membership, settings, outcome.text);
  return text.data();
}

PmiClient open_pmi(const Membership& membership, const Settings& settings) try {
  if (!settings.pmi_descriptor) throw NetworkError("mpirun has not set PMI_FD");
  return PmiClient(*settings.pmi_descriptor, settings.rendezvous_timeout);
} catch (const NetworkError& error) {
  refuse(membership, settings, error.what());
}

[[noreturn]] void fail_as_ended(const Membership& membership,
                                const std::string& why) {
  throw NetworkError(fmt::format(
      "init_process_group: rank {} of {} lost mpirun while the ranks met: {}\n"
      "  likely:  another rank has failed before or in init_process_group, and "
      "mpirun ends the job\n"
      "  next:    read the output of the rank that failed first",
      membership.rank, membership.world_size, why));
}

[[noreturn]] void fail_as_silent(const Membership& membership,
                                 const Settings& settings,
                                 const std::string& why) {
  throw Timeout(fmt::format(
      "init_process_group: mpirun did not answer rank {} of {} within {:.1f} "
      "s: {}\n"
      "  likely:  mpirun, or its proxy on this host, is stopped or overloaded\n"
      "  next:    look at mpirun and hydra_pmi_proxy; "
      "LOCKSTEP_RENDEZVOUS_TIMEOUT says how long to wait",
      membership.rank, membership.world_size,
      settings.rendezvous_timeout.count(), why));
}

// The same.
std::string carry_by_pmi(const Membership& membership, const Settings& settings,
                         const std::string& message) {
  bool waits_for_ranks = false;
  try {
    PmiClient pmi = open_pmi(membership, settings);
    if (membership.rank == 0) pmi.put(kPmiKey, message);
    waits_for_ranks = true;
    pmi.barrier();
    waits_for_ranks = false;
    std::string text = pmi.get(kPmiKey);
    pmi.finalize();
    return text;
  } catch (const Timeout& error) {
    if (waits_for_ranks) miss_ranks(membership, settings);
    fail_as_silent(membership, settings, error.what());
  } catch (const PmiClosed& error) {
    fail_as_ended(membership, error.what());
  } catch (const NetworkError& error) {
    refuse(membership, settings, error.what());
  }
}

}  // namespace

Bootstrap bootstrap_by_mpirun(const Membership& membership,
                              const Settings& settings) {
  Bootstrap made;
  if (membership.rank == 0) made = serve(settings);
  const auto carry =
      settings.launcher == StartedBy::kHydra ? carry_by_pmi : carry_by_mpi;
  read_message(carry(membership, settings, message_of(made, settings)),
               settings, made);
  if (log_enabled(LogLevel::kDebug))
    log(LogLevel::kDebug,
        fmt::format("the ranks meet at {}, as mpirun says", made.store_url));
  return made;
}

}  // namespace lockstep
