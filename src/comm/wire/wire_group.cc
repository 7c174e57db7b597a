#include "src/comm/wire/wire_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include "src/comm/rendezvous/formation.h"
#include "src/comm/rendezvous/store_all_gather.h"
#include "src/comm/wire/mesh.h"
#include "src/comm/wire/transport_plugin.h"
#include "src/store/host_address.h"

namespace lockstep {
namespace {

// The parts of a group, for each way to connect its ranks.
struct Connections {
  std::unique_ptr<Mesh> mesh{};
  std::vector<FileDescriptor> sockets{};
  std::vector<std::string> hosts{};
  std::string nonce{};
  std::vector<std::int32_t> world_ranks{};
  std::vector<std::string> death_keys{};
};

std::vector<std::string> ended_keys_of(const GroupIdentity& identity) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < identity.size; ++rank)
    keys.push_back(ended_key(identity.rank_in_job(rank)));
  return keys;
}

Connections meet_by_socket(const GroupIdentity& identity,
                           const std::vector<int>& first, Store& store,
                           const Settings& settings, Deadline deadline) {
  auto mesh = std::make_unique<Mesh>(
      identity, store, choose_host_address(settings), first, deadline);
  Connections meeting{.sockets = mesh->take_sockets(),
                      .hosts = mesh->hosts(),
                      .nonce = mesh->nonce()};
  meeting.mesh = std::move(mesh);
  return meeting;
}

void refuse_threads(std::vector<std::int32_t> world_ranks,
                    const std::string& group) {
  std::ranges::sort(world_ranks);
  if (std::ranges::adjacent_find(world_ranks) == world_ranks.end()) return;
  throw InvalidArgument(fmt::format(
      "group \"{}\" cannot form: two of its ranks are threads of one process, "
      "and MPI knows processes only\n  next:    start each rank as a process "
      "of its own, with mpirun, or choose another backend",
      group));
}

// The transport's launcher has connected all its processes: the ranks only tell
// each other which process has which rank.
Connections meet_by_world_rank(const LockstepTransportTable& table,
                               const GroupIdentity& identity, Store& store,
                               Deadline deadline) {
  std::int32_t own = 0;
  std::int32_t size = 0;
  LockstepTransportOutcome outcome{};
  if (table.world_rank(&own, &size, &outcome) != kTransportDone)
    throw InvalidArgument(outcome.text);
  Connections meeting;
  for (const std::string& card : store_all_gather(
           identity, "world_rank", fmt::format("{} {}", own, own_host_name()),
           store, {deadline})) {
    meeting.world_ranks.push_back(0);
    std::from_chars(card.data(), card.data() + card.size(),
                    meeting.world_ranks.back());
    meeting.hosts.push_back(card.substr(card.find(' ') + 1));
  }
  refuse_threads(meeting.world_ranks, identity.name);
  // MPI does not report that a process has ended, but its last will in the
  // store does. A rank that leaves the group in good order announces that
  // before.
  meeting.death_keys = ended_keys_of(identity);
  meeting.nonce = fmt::format("{}", meeting.world_ranks.front());
  return meeting;
}

// Transports give the kernel's reasons as text.
[[noreturn]] void fail_to_form(const std::string& group,
                               const std::string& plugin,
                               const std::string& why) {
  const std::string what =
      fmt::format("group \"{}\" could not form on {}", group, plugin);
  if (why.find(std::strerror(EMFILE)) != std::string::npos)
    throw SystemError(what, EMFILE);
  throw NetworkError(
      fmt::format("{}: {}\n  next:    read the other ranks' logs", what, why));
}

}  // namespace

std::unique_ptr<WireCore> meet_on_the_wire(const std::string& plugin,
                                           const GroupIdentity& identity,
                                           const std::vector<int>& first,
                                           std::shared_ptr<Store> store,
                                           const Settings& settings) {
  const LockstepTransportTable& table = load_transport(plugin, settings);
  const Deadline deadline(settings.rendezvous_timeout);
  Connections meeting =
      table.world_rank == nullptr
          ? meet_by_socket(identity, first, *store, settings, deadline)
          : meet_by_world_rank(table, identity, *store, deadline);
  std::vector<std::int32_t> sockets;
  for (const FileDescriptor& socket : meeting.sockets)
    sockets.push_back(socket.get());
  const LockstepTransportConfig config{
      .rank = identity.rank,
      .size = identity.size,
      .sockets = sockets.empty() ? nullptr : sockets.data(),
      .world_ranks =
          meeting.world_ranks.empty() ? nullptr : meeting.world_ranks.data(),
      .group = identity.name.c_str()};
  WireCore::Parts parts{.identity = identity,
                        .check = settings.check,
                        .hosts = std::move(meeting.hosts),
                        .death_keys = std::move(meeting.death_keys)};
  parts.ended_keys = ended_keys_of(identity);
  try {
    parts.transport = std::make_shared<MessageTransport>(
        table, config, std::move(meeting.mesh));
  } catch (const TransportError& error) {
    fail_to_form(identity.name, plugin, error.what());
  }
  parts.fault = std::make_shared<GroupFault>(
      std::move(store),
      fmt::format("group/{}/{}/fault", identity.full_name(), meeting.nonce));
  return std::make_unique<WireCore>(std::move(parts));
}

}  // namespace lockstep
