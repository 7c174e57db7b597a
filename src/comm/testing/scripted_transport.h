// A transport of a single rank of a wire group, whose messages arrive, or do
// not, as a test says.
//
// Threads: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/comm/wire/mesh.h"
#include "src/comm/wire/message_transport.h"
#include "src/comm/wire/wire_core.h"

namespace lockstep {

class ScriptedTransport {
 public:
  struct Posted {
    LockstepTransportMessage message;
    bool sends = false;
    bool released = false;
    int waits = 0;  // calls of wait()
    LockstepTransportStatus status = kTransportNotYet;
  };

  // A group of `size` ranks of which this is rank 0. `death_keys` is as in
  // WireCore::Parts, in the group's own store.
  std::unique_ptr<WireCore> make_core(int size, std::shared_ptr<Store> store,
                                      std::vector<std::string> death_keys = {});

  // Rank 0's end of a group whose other connections `mesh` makes.
  std::unique_ptr<MessageTransport> make_transport(int size,
                                                   std::unique_ptr<Mesh> mesh);
  // What attach() answers.
  LockstepTransportStatus attached = kTransportDone;

  // Whether the other ranks take notices at once, or when this rank asks a
  // second time whether they have.
  bool takes_notices = true;

  // The tags of the messages posted so far, kTaken for a notice that was taken
  // late, and kLeft for leave().
  static constexpr int kLeft = -1, kTaken = -2;
  std::vector<int> posted_tags() const;

  // WireCore::Parts::store_patience of the cores that make_core() makes.
  std::chrono::milliseconds store_patience = std::chrono::seconds(15);

  // The oldest receive from `peer` on `channel` that has nothing, or else the
  // next one, gets `bytes`.
  void deliver(int peer, LockstepTransportChannel channel,
               std::span<const std::byte> bytes);

  // The connection to `peer` ends; first, as far as this rank sees, only for
  // one channel.
  void lose(int peer);
  void lose(int peer, LockstepTransportChannel channel);

  // The number of requests whose memory the transport may still access.
  int held() const;
  int held(LockstepTransportChannel channel) const;

 private:
  static ScriptedTransport& of(LockstepTransport* transport) {
    return *reinterpret_cast<ScriptedTransport*>(transport);
  }
  static LockstepTransportStatus create(const LockstepTransportConfig* config,
                                        LockstepTransport** transport,
                                        LockstepTransportOutcome* outcome);
  static LockstepTransportStatus attach(LockstepTransport* transport,
                                        std::int32_t peer, std::int32_t socket,
                                        LockstepTransportOutcome* outcome);
  static LockstepTransportStatus post_send(
      LockstepTransport* transport, const LockstepTransportMessage* message,
      LockstepTransportRequest** request, LockstepTransportOutcome* outcome);
  static LockstepTransportStatus post_receive(
      LockstepTransport* transport, const LockstepTransportMessage* message,
      LockstepTransportRequest** request, LockstepTransportOutcome* outcome);
  static LockstepTransportStatus wait(LockstepTransport* transport,
                                      LockstepTransportRequest* request,
                                      std::int64_t microseconds,
                                      LockstepTransportOutcome* outcome);
  static void release(LockstepTransport* transport,
                      LockstepTransportRequest* request);
  static void leave(LockstepTransport* transport);
  static void close(LockstepTransport* transport);
  static void destroy(LockstepTransport* transport);
  static const LockstepTransportTable kTable;

  LockstepTransportRequest* post(const Posted& posted);
  // Completes the receives whose messages have come. Call with mutex_ held.
  void match();

  struct Early {
    int peer = 0;
    int channel = 0;
    std::vector<std::byte> bytes{};
  };

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Posted>> posted_;
  std::list<Early> early_;  // of no receive yet
  std::vector<int> tags_;
  std::set<std::pair<int, int>> lost_;  // peers and channels
};

}  // namespace lockstep
