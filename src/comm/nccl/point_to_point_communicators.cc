#include "src/comm/nccl/point_to_point_communicators.h"

#include <fmt/format.h>

#include <utility>

#include "src/comm/nccl/control_calls.h"

namespace lockstep {

PointToPointCommunicators::Pair& PointToPointCommunicators::pair_with(
    int peer) {
  const auto [found, is_new] = pairs_.try_emplace(peer);
  Pair& pair = found->second;
  if (!is_new) return pair;
  const bool tells = identity_.rank < peer;
  if (tells) {
    const std::string both = unique_id(gpu_) + unique_id(gpu_);
    both.copy(pair.ids.data(), pair.ids.size());
  }
  const Buffer ids{pair.ids.data(), static_cast<std::int64_t>(pair.ids.size()),
                   DataType::kUInt8};
  pair.ids_travel =
      start_control_message(control_,
                            {.sends = tells,
                             .peer = peer,
                             .label = "NCCL's identifiers for messages"},
                            ids);
  return pair;
}

std::unique_ptr<GpuCommunicator> PointToPointCommunicators::line(const char* id,
                                                                 bool sends,
                                                                 int peer) {
  const std::string name =
      fmt::format("{} {} {}", identity_.name, sends ? "to" : "from", peer);
  return std::make_unique<GpuCommunicator>(
      gpu_,
      LockstepGpuCommConfig{
          .rank = sends ? 0 : 1, .size = 2, .id = id, .name = name.c_str()});
}

void PointToPointCommunicators::open(int peer, Pair& pair) {
  const bool lower = identity_.rank < peer;
  const char* const from_lower = pair.ids.data();
  const char* const from_higher = from_lower + kGpuUniqueIdBytes;
  pair.out.set_line(line(lower ? from_lower : from_higher, true, peer));
  pair.in.set_line(line(lower ? from_higher : from_lower, false, peer));
}

void PointToPointCommunicators::launch(std::shared_ptr<NcclOperation> message) {
  const int peer = message->operation.peer;
  const bool sends = message->operation.kind == OperationKind::kSend;
  Pair& pair = pair_with(peer);
  (sends ? pair.out : pair.in).push(std::move(message));
  advance(peer, pair);
}

void PointToPointCommunicators::advance() {
  for (auto& [peer, pair] : pairs_) advance(peer, pair);
}

void PointToPointCommunicators::advance(int peer, Pair& pair) {
  if (!pair.out.line() && pair.ids_travel.done()) {
    pair.ids_travel.wait();  // throws if it failed
    open(peer, pair);
  }
  pair.out.advance();
  pair.in.advance();
}

std::vector<GpuCommunicator*> PointToPointCommunicators::lines() const {
  std::vector<GpuCommunicator*> lines;
  for (const auto& [peer, pair] : pairs_)
    for (const LaunchQueue* queue : {&pair.out, &pair.in})
      if (queue->line()) lines.push_back(queue->line());
  return lines;
}

void PointToPointCommunicators::settle() noexcept {
  for (const auto& [peer, pair] : pairs_) lockstep::settle(pair.ids_travel);
}

}  // namespace lockstep
