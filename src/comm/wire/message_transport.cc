#include "src/comm/wire/message_transport.h"

namespace lockstep {

using Request = MessageTransport::Request;

Request& Request::operator=(Request&& other) noexcept {
  if (this == &other) return *this;
  reset();
  transport_ = other.transport_;
  request_ = std::exchange(other.request_, nullptr);
  peer_ = other.peer_;
  done_ = other.done_;
  return *this;
}

bool Request::wait(std::chrono::microseconds timeout) {
  if (request_ == nullptr || done_) return true;
  LockstepTransportOutcome outcome{};
  const auto status = transport_->table_.wait(transport_->transport_, request_,
                                              timeout.count(), &outcome);
  if (status == kTransportNotYet) return false;
  if (status != kTransportDone) fail(status, outcome);
  done_ = true;
  return true;
}

void Request::reset() {
  if (request_ == nullptr) return;
  if (done_)
    transport_->table_.release(transport_->transport_, request_);
  else
    transport_->keep(request_);
  request_ = nullptr;
  done_ = false;
}

MessageTransport::MessageTransport(const LockstepTransportTable& table,
                                   const LockstepTransportConfig& config)
    : table_(table) {
  LockstepTransportOutcome outcome{};
  const auto status = table_.create(&config, &transport_, &outcome);
  if (status != kTransportDone) fail(status, outcome);
}

MessageTransport::~MessageTransport() {
  release_kept();
  table_.destroy(transport_);
}

void MessageTransport::keep(LockstepTransportRequest* request) {
  const MutexLock lock(mutex_);
  if (left_)
    table_.release(transport_, request);
  else
    kept_.push_back(request);
}

void MessageTransport::release_kept() noexcept {
  const MutexLock lock(mutex_);
  for (LockstepTransportRequest* request : kept_)
    table_.release(transport_, request);
  kept_.clear();
}

Request MessageTransport::post(
    decltype(LockstepTransportTable::post_send) posts,
    const LockstepTransportMessage& message) {
  LockstepTransportRequest* request = nullptr;
  LockstepTransportOutcome outcome{};
  const auto status = posts(transport_, &message, &request, &outcome);
  if (status != kTransportDone) fail(status, outcome);
  return {*this, request, message.peer};
}

Request MessageTransport::send(const LockstepTransportMessage& message) {
  return post(table_.post_send, message);
}

Request MessageTransport::receive(const LockstepTransportMessage& message) {
  return post(table_.post_receive, message);
}

void MessageTransport::leave() noexcept {
  {
    const MutexLock lock(mutex_);
    left_ = true;
  }
  table_.leave(transport_);
  release_kept();
}

void MessageTransport::close() noexcept {
  table_.close(transport_);
  leave();
}

void MessageTransport::fail(LockstepTransportStatus status,
                            const LockstepTransportOutcome& outcome) {
  throw TransportError(status, outcome.peer, outcome.text);
}

}  // namespace lockstep
