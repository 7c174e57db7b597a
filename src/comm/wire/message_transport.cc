#include "src/comm/wire/message_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace lockstep {

using Request = MessageTransport::Request;
using std::chrono::duration_cast;
using std::chrono::microseconds;

// A message for a rank that is not connected yet. The transport's mutex guards
// it.
struct MessageTransport::Queued {
  Queued(PostFunction function, const LockstepTransportMessage& given)
      : posts(function), message(given) {}

  const PostFunction posts;
  const LockstepTransportMessage message;
  // Once it has left the queue: the posted message, or why it was not posted.
  std::atomic<bool> has_left{false};
  LockstepTransportRequest* request = nullptr;
  LockstepTransportStatus status = kTransportNotYet;
  LockstepTransportOutcome outcome{};
};

Request& Request::operator=(Request&& other) noexcept {
  if (this == &other) return *this;
  reset();
  transport_ = other.transport_;
  request_ = std::exchange(other.request_, nullptr);
  queued_ = std::move(other.queued_);
  peer_ = other.peer_;
  done_ = other.done_;
  return *this;
}

bool Request::wait(microseconds timeout) {
  if (!*this || done_) return true;
  if (queued_) {
    const Deadline deadline(timeout);
    if (!transport_->leaves_queue(*this, deadline)) return false;
    timeout = std::max(microseconds(0),
                       duration_cast<microseconds>(deadline.remaining()));
  }
  LockstepTransportOutcome outcome{};
  const auto status = transport_->table_.wait(transport_->transport_, request_,
                                              timeout.count(), &outcome);
  if (status == kTransportNotYet) return false;
  if (status != kTransportDone) fail(status, outcome);
  done_ = true;
  return true;
}

void Request::reset() {
  if (queued_) transport_->drop(std::exchange(queued_, nullptr));
  if (request_ == nullptr) return;
  if (done_)
    transport_->table_.release(transport_->transport_, request_);
  else
    transport_->keep(request_);
  request_ = nullptr;
  done_ = false;
}

MessageTransport::MessageTransport(const LockstepTransportTable& table,
                                   const LockstepTransportConfig& config,
                                   std::unique_ptr<Mesh> mesh)
    : table_(table),
      lanes_(static_cast<std::size_t>(config.size)),
      mesh_(std::move(mesh)) {
  LockstepTransportOutcome outcome{};
  const auto status = table_.create(&config, &transport_, &outcome);
  if (status != kTransportDone) fail(status, outcome);
  for (int peer = 0; peer < config.size; ++peer)
    if (peer != config.rank && (!mesh_ || config.sockets[peer] >= 0))
      lane(peer).state = State::kConnected;
  if (!mesh_) return;
  try {
    mesh_->serve(
        {.connected =
             [this](int peer, const FileDescriptor& socket) {
               attach(peer, socket);
             },
         .unreachable =
             [this](int peer, Mesh::Cause cause, const std::string& why) {
               be_unreachable(peer,
                              cause == Mesh::Cause::kPeer ? kTransportBroken
                                                          : kTransportFailed,
                              why);
             }});
  } catch (...) {
    table_.destroy(transport_);
    throw;
  }
}

MessageTransport::~MessageTransport() {
  if (mesh_) mesh_->stop();
  release_kept();
  table_.destroy(transport_);
}

void MessageTransport::keep(LockstepTransportRequest* request) {
  const MutexLock lock(mutex_);
  if (has_ended_)
    table_.release(transport_, request);
  else
    kept_.push_back(request);
}

void MessageTransport::release_kept() noexcept {
  const MutexLock lock(mutex_);
  has_ended_ = true;
  for (LockstepTransportRequest* request : kept_)
    table_.release(transport_, request);
  kept_.clear();
}

LockstepTransportRequest* MessageTransport::post_now(
    PostFunction posts, const LockstepTransportMessage& message) {
  LockstepTransportRequest* request = nullptr;
  LockstepTransportOutcome outcome{};
  const auto status = posts(transport_, &message, &request, &outcome);
  if (status != kTransportDone) fail(status, outcome);
  return request;
}

Request MessageTransport::post(PostFunction posts,
                               const LockstepTransportMessage& message) {
  Request request(*this, message.peer);
  Lane& lane = this->lane(message.peer);
  if (lane.state.load() != State::kConnected) {
    const MutexLock lock(mutex_);
    if (left_) throw TransportError(kTransportClosed, message.peer, "it left");
    call(message.peer, lane);
    if (lane.state.load() == State::kUnreachable)
      throw TransportError(lane.status, message.peer, lane.why);
    if (lane.state.load() == State::kCalled) {
      request.queued_ = std::make_shared<Queued>(posts, message);
      lane.queue.push_back(request.queued_);
      return request;
    }
  }
  request.request_ = post_now(posts, message);
  return request;
}

Request MessageTransport::send(const LockstepTransportMessage& message) {
  return post(table_.post_send, message);
}

Request MessageTransport::receive(const LockstepTransportMessage& message) {
  return post(table_.post_receive, message);
}

void MessageTransport::connect(int peer) {
  Lane& lane = this->lane(peer);
  if (lane.state.load() != State::kApart) return;
  const MutexLock lock(mutex_);
  if (!left_) call(peer, lane);
}

void MessageTransport::call(int peer, Lane& lane) {
  if (lane.state.load() != State::kApart) return;
  lane.state = State::kCalled;
  mesh_->call(peer);
}

// On the mesh's thread.
void MessageTransport::attach(int peer, const FileDescriptor& socket) {
  LockstepTransportOutcome outcome{};
  const auto status = table_.attach(transport_, peer, socket.get(), &outcome);
  if (status != kTransportDone)
    return be_unreachable(peer, status,
                          fmt::format("this rank cannot connect to rank {}: {}",
                                      peer, outcome.text));
  {
    const MutexLock lock(mutex_);
    post_queue(lane(peer));
    lane(peer).state = State::kConnected;
  }
  changed_.notify_all();
  tell_watches(peer);
}

void MessageTransport::post_queue(Lane& lane) {
  for (const auto& queued : lane.queue) {
    queued->status = queued->posts(transport_, &queued->message,
                                   &queued->request, &queued->outcome);
    queued->has_left = true;
  }
  lane.queue.clear();
}

// On the mesh's thread.
void MessageTransport::be_unreachable(int peer, LockstepTransportStatus status,
                                      const std::string& why) {
  {
    const MutexLock lock(mutex_);
    Lane& lane = this->lane(peer);
    lane.status = status;
    lane.why = why;
    for (const auto& queued : lane.queue) {
      queued->status = status;
      queued->outcome.peer = peer;
      why.copy(queued->outcome.text, sizeof queued->outcome.text - 1);
      queued->has_left = true;
    }
    lane.queue.clear();
    lane.state = State::kUnreachable;
  }
  changed_.notify_all();
  tell_watches(peer);
}

void MessageTransport::tell_watches(int peer) {
  const MutexLock lock(watches_mutex_);
  for (const ConnectionWatch* watch : watches_) watch->action_(peer);
}

MessageTransport::ConnectionWatch::ConnectionWatch(
    MessageTransport& transport, std::function<void(int)> action)
    : transport_(transport), action_(std::move(action)) {
  const MutexLock lock(transport.watches_mutex_);
  transport.watches_.push_back(this);
  for (std::size_t peer = 0; peer < transport.lanes_.size(); ++peer) {
    const State state = transport.lanes_[peer].state.load();
    if (state == State::kConnected || state == State::kUnreachable)
      action_(static_cast<int>(peer));
  }
}

MessageTransport::ConnectionWatch::~ConnectionWatch() {
  const MutexLock lock(transport_.watches_mutex_);
  std::erase(transport_.watches_, this);
}

// Whether `request` has been posted; waits for that.
bool MessageTransport::leaves_queue(Request& request, Deadline deadline) {
  Queued& queued = *request.queued_;
  if (!queued.has_left) {
    if (deadline.expired()) return false;
    MutexLock lock(mutex_);
    changed_.wait_until(lock, deadline.when(),
                        [&] { return queued.has_left.load(); });
    if (!queued.has_left) return false;
  }
  if (queued.status != kTransportDone) fail(queued.status, queued.outcome);
  request.request_ = queued.request;
  request.queued_.reset();
  return true;
}

void MessageTransport::drop(const std::shared_ptr<Queued>& queued) {
  {
    const MutexLock lock(mutex_);
    if (!queued->has_left) {
      lane(queued->message.peer).queue.remove(queued);
      return;
    }
  }
  if (queued->request != nullptr) keep(queued->request);
}

void MessageTransport::end_queues() noexcept {
  {
    const MutexLock lock(mutex_);
    for (Lane& lane : lanes_) {
      for (const auto& queued : lane.queue) {
        queued->status = kTransportClosed;
        queued->has_left = true;
      }
      lane.queue.clear();
    }
  }
  changed_.notify_all();
}

void MessageTransport::stop_connecting() noexcept {
  {
    const MutexLock lock(mutex_);
    left_ = true;
  }
  if (mesh_) mesh_->stop();
  end_queues();
}

void MessageTransport::leave() noexcept {
  stop_connecting();
  table_.leave(transport_);
  release_kept();
}

void MessageTransport::close() noexcept {
  if (mesh_) mesh_->stop();
  table_.close(transport_);
  leave();
}

void MessageTransport::fail(LockstepTransportStatus status,
                            const LockstepTransportOutcome& outcome) {
  const std::string_view text = outcome.text;
  if (text.empty() && status == kTransportClosed)
    throw TransportError(status, outcome.peer,
                         "this rank has closed the group's connections");
  throw TransportError(status, outcome.peer, std::string(text));
}

}  // namespace lockstep
