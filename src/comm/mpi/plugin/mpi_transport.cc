#include "src/comm/mpi/plugin/mpi_transport.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace lockstep {
namespace {

constexpr int kLongestName = 1024;  // in an error message

// FNV-1a (Fowler, Noll, Vo).
class Hash {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes)
      value_ = (value_ ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

std::uint64_t hash_of(const LockstepTransportConfig& config,
                      const std::vector<int>& world_ranks) {
  Hash hash;
  hash.add(config.group);
  for (const int rank : world_ranks) {
    hash.add(",");
    hash.add(std::to_string(rank));
  }
  return hash.value();
}

std::vector<int> world_ranks_of(const LockstepTransportConfig& config,
                                int world_size) {
  std::vector<int> ranks(config.world_ranks, config.world_ranks + config.size);
  std::vector<int> sorted = ranks;
  std::ranges::sort(sorted);
  if (sorted.front() < 0 || sorted.back() >= world_size ||
      std::ranges::adjacent_find(sorted) != sorted.end())
    throw MpiError(
        "the ranks of group \"" +
        std::string(config.group).substr(0, kLongestName) +
        "\" are not distinct processes of one mpirun: ranks that are threads "
        "cannot use the backend \"mpi\"");
  return ranks;
}

}  // namespace

MpiTransport::Request::Request(MpiTransport& transport,
                               MpiRequestPointer message)
    : transport_(transport), message_(std::move(message)) {}

// The group may hold a request that was not done: it is told, and need not
// answer.
MpiTransport::Request::~Request() {
  try {
    message_->abandon();
    if (message_->has_ended()) return;
    transport_.with_group(
        [message = message_](MpiGroup& group) { group.forget(message); });
  } catch (const std::exception&) {
    return;  // out of memory: the group drops the request when it ends
  }
}

MpiTransport::MpiTransport(const LockstepTransportConfig& config)
    : engine_(MpiEngine::started()),
      group_(std::make_shared<std::shared_ptr<MpiGroup>>()) {
  std::vector<int> ranks = world_ranks_of(config, engine_.world_size());
  engine_.count_in();
  const std::uint64_t members = hash_of(config, ranks);
  engine_.submit([group = group_, members, rank = config.rank,
                  ranks = std::move(ranks)](MpiRouter& router) mutable {
    const MpiGroupId id{members, router.next_turn(members)};
    *group = std::make_shared<MpiGroup>(router, id, rank, std::move(ranks));
    router.join(*group);
  });
}

MpiTransport::~MpiTransport() {
  leave();
  engine_.submit([group = group_](MpiRouter& router) {
    router.leave(*group);
    group->reset();
  });
  engine_.count_out();
}

void MpiTransport::with_group(std::function<void(MpiGroup&)> action) {
  engine_.submit([group = group_, action = std::move(action)](MpiRouter&) {
    action(**group);
  });
}

std::unique_ptr<MpiTransport::Request> MpiTransport::send(
    const LockstepTransportMessage& message) {
  auto request = std::make_shared<MpiRequest>(message);
  if (message.bytes <= kMpiShortBytes) {
    request->packet = MpiBlock(sizeof(MpiPacket) + message.bytes);
    request->copy_out(0, request->packet.span().subspan(sizeof(MpiPacket)));
  }
  with_group([request](MpiGroup& group) { group.send(request); });
  return std::make_unique<Request>(*this, std::move(request));
}

std::unique_ptr<MpiTransport::Request> MpiTransport::receive(
    const LockstepTransportMessage& message) {
  auto request = std::make_shared<MpiRequest>(message);
  with_group([request](MpiGroup& group) { group.receive(request); });
  return std::make_unique<Request>(*this, std::move(request));
}

LockstepTransportStatus MpiTransport::wait(Request& request,
                                           std::chrono::microseconds timeout) {
  if (closed_) return kTransportClosed;
  MpiRequest& message = request.message();
  const auto status = message.wait(std::chrono::microseconds(0));
  if (status != kTransportNotYet) return status;
  engine_.attend();
  if (timeout.count() <= 0) return status;
  if (!message.was_waited_for) engine_.expect_soon();
  message.was_waited_for = true;
  const MpiEngine::Waiting waiting(engine_);
  return message.wait(timeout);
}

void MpiTransport::leave() {
  if (closed_.exchange(true)) return;
  with_group([](MpiGroup& group) { group.leave(); });
}

void MpiTransport::close() {
  if (closed_.exchange(true)) return;
  with_group([](MpiGroup& group) { group.close(); });
}

}  // namespace lockstep
