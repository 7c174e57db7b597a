#include "src/comm/mpi/plugin/mpi_router.h"

#include <cstring>
#include <utility>

#include "src/comm/mpi/plugin/mpi_group.h"

namespace lockstep {

void MpiRouter::start() {
  link_.start();
  for (MpiTransfer& slot : slots_)
    slot = link_.receive(MPI_ANY_SOURCE, kMpiPacketTag, kMpiPacketBytes);
}

void MpiRouter::join(const std::shared_ptr<MpiGroup>& group) {
  groups_[group->id()] = group;
  if (has_failed()) group->fail(why_failed_);
  const auto found = early_.find(group->id());
  if (found == early_.end()) return;
  auto packets = std::move(found->second);
  early_.erase(found);
  for (auto& [block, bytes] : packets) deliver(std::move(block), bytes);
}

void MpiRouter::leave(const std::shared_ptr<MpiGroup>& group) {
  groups_.erase(group->id());
  if (group->is_unsettled()) broken_[group->id()] = group;
}

void MpiRouter::send(int world_rank, const MpiPacket& packet) {
  MpiBlock block(sizeof packet);
  std::memcpy(block.data(), &packet, sizeof packet);
  send(world_rank, std::move(block), nullptr);
}

void MpiRouter::send(int world_rank, MpiBlock block,
                     MpiRequestPointer request) {
  Leaving leaving{link_.send(world_rank, kMpiPacketTag, std::move(block)),
                  std::move(request)};
  if (!link_.done(leaving.transfer))
    leaving_.push_back(std::move(leaving));
  else if (leaving.request)
    leaving.request->finish(kTransportDone);
}

int MpiRouter::take_stream_tag() {
  if (!free_tags_.empty()) {
    const int tag = free_tags_.back();
    free_tags_.pop_back();
    return tag;
  }
  if (next_tag_ > link_.last_tag())
    throw MpiError("this MPI has no tags left for long messages");
  return next_tag_++;
}

bool MpiRouter::advance() {
  bool moved = take_packets();
  const std::size_t before = leaving_.size();
  std::erase_if(leaving_, [&](Leaving& each) {
    if (!link_.done(each.transfer)) return false;
    if (each.request) each.request->finish(kTransportDone);
    return true;
  });
  moved |= leaving_.size() != before;
  for (auto& [id, group] : groups_) moved |= group->advance();
  link_.look_at_forgotten();
  return moved;
}

// Slots with one sender's packets complete in the order in which they were
// posted, so a later slot waits for the earlier ones.
bool MpiRouter::take_packets() {
  bool moved = false;
  while (link_.done(slots_[oldest_])) {
    MpiTransfer& slot = slots_[oldest_];
    oldest_ = (oldest_ + 1) % kSlots;
    MpiBlock block = std::move(slot.block);
    const std::size_t bytes = slot.received;
    slot = link_.receive(MPI_ANY_SOURCE, kMpiPacketTag, kMpiPacketBytes);
    deliver(std::move(block), bytes);
    moved = true;
  }
  return moved;
}

void MpiRouter::deliver(MpiBlock block, std::size_t bytes) {
  MpiPacket packet;
  if (bytes < sizeof packet)
    throw MpiError("received a packet without a header");
  std::memcpy(&packet, block.data(), sizeof packet);
  if (packet.kind == MpiPacketKind::kExiting) {
    return count_exit();
  }
  if (packet.kind == MpiPacketKind::kAllExit) {
    all_exit_ = true;
    return;
  }
  const auto message = block.span().first(bytes).subspan(sizeof packet);
  const auto found = groups_.find(packet.group);
  if (found != groups_.end()) return found->second->take(packet, message);
  const auto broken = broken_.find(packet.group);
  if (broken != broken_.end()) {
    broken->second->take(packet, message);
    if (!broken->second->is_unsettled()) broken_.erase(broken);
    return;
  }
  const auto turns = turns_.find(packet.group.members);
  if (turns == turns_.end() || turns->second <= packet.group.turn)
    early_[packet.group].emplace_back(std::move(block), bytes);
}

void MpiRouter::fail(const std::string& why) {
  why_failed_ = why;
  for (Leaving& each : leaving_)
    if (each.request) each.request->finish(kTransportFailed, why);
  for (auto& [id, group] : groups_) group->fail(why);
}

void MpiRouter::announce_exit() {
  if (exits_ || has_failed() || link_.has_forgotten_sends()) return;
  if (link_.is_over()) return fail("the program has finalised MPI");
  exits_ = true;
  if (link_.rank() == 0) return count_exit();
  MpiPacket packet;
  packet.kind = MpiPacketKind::kExiting;
  send(0, packet);
}

void MpiRouter::count_exit() {
  if (++exiting_ < link_.size()) return;
  all_exit_ = true;
  MpiPacket packet;
  packet.kind = MpiPacketKind::kAllExit;
  for (int rank = 1; rank < link_.size(); ++rank) send(rank, packet);
}

void MpiRouter::finish() {
  if (!all_exit_ || is_sending() || has_failed()) return;
  link_.cancel_forgotten();
  for (MpiTransfer& slot : slots_) link_.cancel(slot);
  link_.finish();
}

}  // namespace lockstep
