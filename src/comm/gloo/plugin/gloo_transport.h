// Gloo's TCP transport as the transport of a wire backend.
//
// All transports of a process share one thread of Gloo's. The caller makes the
// connections and checks their peers before it attaches them: Gloo itself would
// accept any process that connects first.
//
// Threads: as transport.h says.
// Errors:  BrokenConnection and other exceptions; TransportEntry turns them
//          into statuses.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "src/comm/gloo/plugin/gloo_access.h"
#include "src/comm/wire/transport_entry.h"

namespace lockstep {

struct GlooRequest {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  GlooDirection direction = GlooDirection::kReceive;
  int peer = 0;

  gloo::transport::tcp::UnboundBuffer& tcp() const {
    return static_cast<gloo::transport::tcp::UnboundBuffer&>(*buffer);
  }
};

class GlooTransport {
 public:
  using Request = GlooRequest;

  explicit GlooTransport(const LockstepTransportConfig& config);
  ~GlooTransport();

  // Of one thread at a time, and before the first message to or from `peer`.
  void attach(int peer, int socket);

  std::unique_ptr<GlooRequest> send(const LockstepTransportMessage& message);
  std::unique_ptr<GlooRequest> receive(const LockstepTransportMessage& message);
  // kTransportDone, NotYet or Closed.
  LockstepTransportStatus wait(GlooRequest& request,
                               std::chrono::microseconds timeout);
  void leave();
  void close();

 private:
  void open();
  // Null for this rank, and before attach().
  GlooPair* pair(int peer) const;
  std::unique_ptr<GlooRequest> post(const LockstepTransportMessage& message,
                                    GlooDirection direction);
  bool connected(int peer) const;
  [[noreturn]] void fail_broken(GlooRequest& request) const;

  const int rank_;
  const int size_;
  // Null before the first attach(): Gloo's thread wakes 100 times a second.
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  // One receive per peer that never gets a message: when a connection breaks,
  // Gloo reports that to waiting receives but not to the one in progress.
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> canaries_;
  std::byte nothing_{};
  std::atomic<bool> closed_{false};
};

}  // namespace lockstep
