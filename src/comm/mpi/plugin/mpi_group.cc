#include "src/comm/mpi/plugin/mpi_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/comm/operation/peer_checks.h"

namespace lockstep {
namespace {

const char* const kClosedText = "it aborted the group";

std::string too_long(const MpiPacket& packet, std::size_t room) {
  return "expected a message of " + std::to_string(room) + " bytes, got " +
         std::to_string(packet.bytes);
}

}  // namespace

MpiGroup::MpiGroup(MpiRouter& router, MpiGroupId id, int rank,
                   std::vector<int> world_ranks)
    : router_(router),
      id_(id),
      rank_(rank),
      world_ranks_(std::move(world_ranks)),
      presence_(world_ranks_.size(), Presence::kHere) {}

MpiPacket MpiGroup::packet(MpiPacketKind kind) const {
  MpiPacket made;
  made.group = id_;
  made.from = rank_;
  made.kind = kind;
  return made;
}

bool MpiGroup::refused(const MpiRequestPointer& request) {
  if (ended_ != kTransportNotYet) request->finish(ended_, why_ended_);
  return ended_ != kTransportNotYet;
}

void MpiGroup::send(const MpiRequestPointer& request) {
  if (refused(request)) return;
  const int peer = request->peer;
  if (presence(peer) != Presence::kHere)
    return request->finish(kTransportBroken, presence(peer) == Presence::kLeft
                                                 ? kLeftGroup
                                                 : kClosedText);
  const bool is_short = static_cast<bool>(request->packet);
  MpiPacket header =
      packet(is_short ? MpiPacketKind::kMessage : MpiPacketKind::kOffer);
  header.channel = request->channel;
  header.tag = request->tag;
  header.bytes = request->bytes;
  if (is_short) {
    std::memcpy(request->packet.data(), &header, sizeof header);
    router_.send(world_rank(peer), std::move(request->packet), request);
    return;
  }
  header.offer = next_offer_++;
  offers_[header.offer] = request;
  router_.send(world_rank(peer), header);
}

void MpiGroup::receive(const MpiRequestPointer& request) {
  if (refused(request)) return;
  const LaneKey key{request->peer, request->channel, request->tag};
  const auto found = lanes_.find(key);
  if (found != lanes_.end() && !found->second.arrived.empty()) {
    const Arrival arrival = std::move(found->second.arrived.front());
    found->second.arrived.pop_front();
    if (found->second.arrived.empty()) lanes_.erase(found);
    return meet(request, arrival.packet, arrival.message);
  }
  const Presence peer = presence(request->peer);
  if (peer != Presence::kHere)
    return request->finish(kTransportBroken,
                           peer == Presence::kLeft ? kLeftGroup : kClosedText);
  lanes_[key].wanted.push_back(request);
}

void MpiGroup::meet(const MpiRequestPointer& request, const MpiPacket& arrived,
                    std::span<const std::byte> message) {
  if (arrived.bytes > request->bytes)
    return request->finish(kTransportFailed, too_long(arrived, request->bytes));
  if (arrived.kind == MpiPacketKind::kMessage) {
    request->copy_in(0, message);
    return request->finish(kTransportDone);
  }
  MpiPacket accept = packet(MpiPacketKind::kAccept);
  accept.offer = arrived.offer;
  accept.bytes = arrived.bytes;
  accept.stream_tag = router_.take_stream_tag();
  const int from = world_rank(arrived.from);
  streams_.emplace_back(
      router_.link(), request,
      MpiStream::Route{from, accept.stream_tag, MpiStream::Direction::kIn},
      arrived.bytes);
  // Posts the first receives before the sender learns the tag.
  streams_.back().advance();
  router_.send(from, accept);
}

void MpiGroup::arrive(const MpiPacket& arrived,
                      std::span<const std::byte> message) {
  const LaneKey key{arrived.from, arrived.channel, arrived.tag};
  Lane& lane = lanes_[key];
  if (lane.wanted.empty()) {
    lane.arrived.push_back({arrived, {message.begin(), message.end()}});
    return;
  }
  const MpiRequestPointer request = std::move(lane.wanted.front());
  lane.wanted.pop_front();
  if (lane.wanted.empty()) lanes_.erase(key);
  meet(request, arrived, message);
}

void MpiGroup::begin_stream(const MpiPacket& accepted) {
  const auto found = offers_.find(accepted.offer);
  if (found == offers_.end()) return;  // was abandoned
  streams_.emplace_back(
      router_.link(), found->second,
      MpiStream::Route{world_rank(accepted.from), accepted.stream_tag,
                       MpiStream::Direction::kOut},
      accepted.bytes);
  offers_.erase(found);
  streams_.back().advance();
}

void MpiGroup::take(const MpiPacket& taken,
                    std::span<const std::byte> message) {
  if (taken.from < 0 || taken.from >= static_cast<int>(world_ranks_.size()))
    throw MpiError("a packet came from a rank outside of the group");
  const bool ended = ended_ != kTransportNotYet;
  switch (taken.kind) {
    case MpiPacketKind::kMessage:
    case MpiPacketKind::kOffer:
      return ended ? void() : arrive(taken, message);
    case MpiPacketKind::kAccept:
      return begin_stream(taken);
    case MpiPacketKind::kLeft:
      return part(taken.from, Presence::kLeft);
    case MpiPacketKind::kClosed:
      return part(taken.from, Presence::kClosed);
    case MpiPacketKind::kExiting:
    case MpiPacketKind::kAllExit:
      return;  // of no group
  }
}

bool MpiGroup::advance() {
  bool moved = false;
  for (MpiStream& stream : streams_) moved |= stream.advance();
  std::erase_if(streams_, [&](MpiStream& stream) {
    if (!stream.finished()) return false;
    stream.request()->finish(kTransportDone);
    if (stream.route().direction == MpiStream::Direction::kIn)
      router_.give_back_stream_tag(stream.route().tag);
    return true;
  });
  return moved;
}

void MpiGroup::end_stream(MpiStream& stream, LockstepTransportStatus status,
                          const std::string& why) {
  stream.give_up();
  stream.request()->finish(status, why);
  torn_ = true;
}

// Packets come in order: all messages that a rank sent before it left are here,
// except streams, which continue.
void MpiGroup::part(int peer, Presence how) {
  presence(peer) = how;
  const bool closed = how == Presence::kClosed;
  const std::string why = closed ? kClosedText : kLeftGroup;
  for (auto& [key, lane] : lanes_) {
    if (key.peer != peer) continue;
    for (const MpiRequestPointer& each : lane.wanted)
      each->finish(kTransportBroken, why);
    lane.wanted.clear();
    if (closed)
      std::erase_if(lane.arrived, [](const Arrival& arrival) {
        return arrival.packet.kind == MpiPacketKind::kOffer;
      });
  }
  std::erase_if(lanes_, [](const auto& each) {
    return each.second.wanted.empty() && each.second.arrived.empty();
  });
  std::erase_if(offers_, [&](const auto& each) {
    if (each.second->peer != peer) return false;
    each.second->finish(kTransportBroken, why);
    return true;
  });
  if (!closed) return;
  std::erase_if(streams_, [&](MpiStream& stream) {
    if (stream.request()->peer != peer) return false;
    end_stream(stream, kTransportBroken, why);
    return true;
  });
}

void MpiGroup::forget(const MpiRequestPointer& request) {
  std::erase_if(offers_, [&](const auto& each) {
    torn_ |= each.second == request;
    return each.second == request;
  });
  std::erase_if(streams_, [&](MpiStream& stream) {
    if (stream.request() != request) return false;
    end_stream(stream, kTransportClosed, "");
    return true;
  });
  const auto found =
      lanes_.find({request->peer, request->channel, request->tag});
  if (found == lanes_.end()) return;
  std::erase(found->second.wanted, request);
  if (found->second.wanted.empty() && found->second.arrived.empty())
    lanes_.erase(found);
}

void MpiGroup::end_all(LockstepTransportStatus status, const std::string& why) {
  if (ended_ != kTransportNotYet) return;
  ended_ = status;
  why_ended_ = why;
  for (auto& [key, lane] : lanes_)
    for (const MpiRequestPointer& each : lane.wanted) each->finish(status, why);
  lanes_.clear();
  for (auto& [number, request] : offers_) request->finish(status, why);
  offers_.clear();
  for (MpiStream& stream : streams_) end_stream(stream, status, why);
  streams_.clear();
}

void MpiGroup::tell_peers(MpiPacketKind kind) {
  for (int peer = 0; peer < static_cast<int>(world_ranks_.size()); ++peer)
    if (peer != rank_) router_.send(world_rank(peer), packet(kind));
}

void MpiGroup::close() {
  const bool before = ended_ != kTransportNotYet;
  end_all(kTransportClosed, "the group was closed");
  if (!before) tell_peers(MpiPacketKind::kClosed);
}

void MpiGroup::leave() {
  if (ended_ != kTransportNotYet) return;
  tell_peers(torn_ ? MpiPacketKind::kClosed : MpiPacketKind::kLeft);
}

bool MpiGroup::is_unsettled() const {
  return (torn_ || ended_ != kTransportNotYet) &&
         std::ranges::count(presence_, Presence::kHere) > 1;
}

void MpiGroup::fail(const std::string& why) { end_all(kTransportFailed, why); }

}  // namespace lockstep
