#include "src/comm/testing/scripted_transport.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

namespace lockstep {

const LockstepTransportTable ScriptedTransport::kTable{
    .version = kTransportVersion,
    .world_rank = nullptr,
    .create = create,
    .attach = attach,
    .post_send = post_send,
    .post_receive = post_receive,
    .wait = wait,
    .release = release,
    .leave = leave,
    .close = close,
    .destroy = destroy,
    .bootstrap = nullptr,
};

std::unique_ptr<WireCore> ScriptedTransport::make_core(
    int size, std::shared_ptr<Store> store,
    std::vector<std::string> death_keys) {
  LockstepTransportConfig config{};
  config.size = size;
  // create() finds this object through the name.
  config.group = reinterpret_cast<const char*>(this);
  WireCore::Parts parts{.identity = {.name = "scripted", .size = size},
                        .death_keys = std::move(death_keys),
                        .store_patience = store_patience};
  parts.transport = std::make_unique<MessageTransport>(kTable, config);
  parts.fault = std::make_unique<GroupFault>(std::move(store), "fault");
  return std::make_unique<WireCore>(std::move(parts));
}

std::unique_ptr<MessageTransport> ScriptedTransport::make_transport(
    int size, std::unique_ptr<Mesh> mesh) {
  const std::vector<std::int32_t> none(static_cast<std::size_t>(size), -1);
  LockstepTransportConfig config{};
  config.size = size;
  config.sockets = none.data();
  config.group = reinterpret_cast<const char*>(this);
  return std::make_unique<MessageTransport>(kTable, config, std::move(mesh));
}

std::vector<int> ScriptedTransport::posted_tags() const {
  const std::lock_guard lock(mutex_);
  return tags_;
}

LockstepTransportStatus ScriptedTransport::attach(
    LockstepTransport* transport, std::int32_t, std::int32_t,
    LockstepTransportOutcome* outcome) {
  std::string_view("scripted").copy(outcome->text, sizeof outcome->text - 1);
  return of(transport).attached;
}

void ScriptedTransport::leave(LockstepTransport* transport) {
  const std::lock_guard lock(of(transport).mutex_);
  of(transport).tags_.push_back(kLeft);
}

void ScriptedTransport::deliver(int peer, LockstepTransportChannel channel,
                                std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  early_.push_back({peer, channel, {bytes.begin(), bytes.end()}});
  match();
}

void ScriptedTransport::lose(int peer) {
  for (const auto channel :
       {kChannelCollective, kChannelEnvelope, kChannelPayload, kChannelControl})
    lose(peer, channel);
}

void ScriptedTransport::lose(int peer, LockstepTransportChannel channel) {
  const std::lock_guard lock(mutex_);
  lost_.emplace(peer, channel);
  match();
}

void ScriptedTransport::match() {
  for (const auto& one : posted_) {
    if (one->released || one->status != kTransportNotYet) continue;
    const LockstepTransportMessage& message = one->message;
    const auto early = std::ranges::find_if(early_, [&](const Early& each) {
      return !one->sends && each.peer == message.peer &&
             each.channel == message.channel;
    });
    if (early != early_.end()) {
      std::ranges::copy(early->bytes, static_cast<std::byte*>(message.data));
      early_.erase(early);
      one->status = kTransportDone;
    } else if (lost_.contains({message.peer, message.channel})) {
      one->status = kTransportBroken;
    }
  }
  changed_.notify_all();
}

int ScriptedTransport::held() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::ranges::count_if(
      posted_, [](const auto& one) { return !one->released; }));
}

int ScriptedTransport::held(LockstepTransportChannel channel) const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(
      std::ranges::count_if(posted_, [channel](const auto& one) {
        return !one->released && one->message.channel == channel;
      }));
}

LockstepTransportStatus ScriptedTransport::create(
    const LockstepTransportConfig* config, LockstepTransport** transport,
    LockstepTransportOutcome*) {
  *transport =
      reinterpret_cast<LockstepTransport*>(const_cast<char*>(config->group));
  return kTransportDone;
}

LockstepTransportRequest* ScriptedTransport::post(const Posted& posted) {
  const std::lock_guard lock(mutex_);
  posted_.push_back(std::make_unique<Posted>(posted));
  tags_.push_back(posted.message.tag);
  match();
  return reinterpret_cast<LockstepTransportRequest*>(posted_.back().get());
}

LockstepTransportStatus ScriptedTransport::post_send(
    LockstepTransport* transport, const LockstepTransportMessage* message,
    LockstepTransportRequest** request, LockstepTransportOutcome*) {
  const bool is_taken =
      of(transport).takes_notices && message->channel == kChannelControl;
  *request = of(transport).post(
      {.message = *message,
       .sends = true,
       .status = is_taken ? kTransportDone : kTransportNotYet});
  return kTransportDone;
}

LockstepTransportStatus ScriptedTransport::post_receive(
    LockstepTransport* transport, const LockstepTransportMessage* message,
    LockstepTransportRequest** request, LockstepTransportOutcome*) {
  *request = of(transport).post({.message = *message});
  return kTransportDone;
}

LockstepTransportStatus ScriptedTransport::wait(
    LockstepTransport* transport, LockstepTransportRequest* request,
    std::int64_t microseconds, LockstepTransportOutcome* outcome) {
  ScriptedTransport& script = of(transport);
  auto& posted = *reinterpret_cast<Posted*>(request);
  std::unique_lock lock(script.mutex_);
  if (posted.sends && posted.message.channel == kChannelControl &&
      posted.status == kTransportNotYet && ++posted.waits == 2) {
    posted.status = kTransportDone;
    script.tags_.push_back(kTaken);
  }
  script.changed_.wait_for(lock, std::chrono::microseconds(microseconds),
                           [&] { return posted.status != kTransportNotYet; });
  outcome->peer = posted.message.peer;
  return posted.status;
}

void ScriptedTransport::release(LockstepTransport* transport,
                                LockstepTransportRequest* request) {
  const std::lock_guard lock(of(transport).mutex_);
  reinterpret_cast<Posted*>(request)->released = true;
}

void ScriptedTransport::close(LockstepTransport* transport) {
  ScriptedTransport& script = of(transport);
  const std::lock_guard lock(script.mutex_);
  for (const auto& one : script.posted_)
    if (one->status == kTransportNotYet) one->status = kTransportClosed;
  script.changed_.notify_all();
}

void ScriptedTransport::destroy(LockstepTransport*) {}

}  // namespace lockstep
