// The plug-in ABI between a wire backend and the library that moves its
// messages: a C table of functions that a plug-in exports.
//
// Gloo and MPI are used as transports only: messages between two ranks, matched
// by channel and tag, and in order if both are equal. Everything else (routes,
// arithmetic, checks, errors) is our code and the same for all transports. Only
// plain data crosses the border, so that a plug-in may use another standard
// library, or its own copy of a library that the program also has.
//
// Threads: every function may be called from any thread, except that destroy()
//          comes last.
// Errors:  a status and an Outcome; no exception crosses the border.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

enum LockstepTransportStatus : std::int32_t {
  kTransportDone = 0,
  kTransportNotYet = 1,
  kTransportBroken = 2,  // the connection to Outcome::peer is gone
  kTransportClosed = 3,  // close() was called
  kTransportFailed = 4,  // any other error; Outcome::text describes it
};

enum LockstepTransportChannel : std::int32_t {
  kChannelCollective = 0,  // the elements of collectives
  kChannelEnvelope = 1,    // the description of a message
  kChannelPayload = 2,     // the elements of a message
  kChannelControl = 3,     // each rank's call
  kTransportChannels = 4,
};

struct LockstepTransportOutcome {
  std::int32_t peer;  // the rank whose connection broke
  char text[508];
};

struct LockstepTransportConfig {
  std::int32_t rank;
  std::int32_t size;
  // The connected TCP socket to each of `size` ranks, of which create() keeps a
  // copy; -1 for this rank, and for ranks that attach() connects later. Null if
  // the transport makes its own connections.
  const std::int32_t* sockets;
  // The world_rank() of each of `size` ranks; null if the transport has no
  // world_rank().
  const std::int32_t* world_ranks;
  const char* group;  // its name
};

struct LockstepTransportMessage {
  std::int32_t peer;
  // A group's duplicate number n uses the channels from n * kTransportChannels
  // on.
  std::int32_t channel;
  std::int32_t tag;   // 0 … 2^31 - 1
  void* data;         // sends only read it
  std::size_t bytes;  // of receives: at least the bytes sent
};

typedef struct LockstepTransport LockstepTransport;
typedef struct LockstepTransportRequest LockstepTransportRequest;

struct LockstepTransportTable {
  std::uint32_t version;  // kTransportVersion

  // This process's number among those that the transport's own launcher
  // started; null if the transport has no launcher. Fails with a text that
  // gives the next step if the launcher did not start this process.
  LockstepTransportStatus (*world_rank)(std::int32_t* rank, std::int32_t* size,
                                        LockstepTransportOutcome* outcome);

  // All ranks of the group call it.
  LockstepTransportStatus (*create)(const LockstepTransportConfig* config,
                                    LockstepTransport** transport,
                                    LockstepTransportOutcome* outcome);

  // Connects `peer` by a TCP socket, of which it keeps a copy. One thread at a
  // time calls it. No message to or from `peer` may be posted before. Null if
  // the transport makes its own connections.
  LockstepTransportStatus (*attach)(LockstepTransport* transport,
                                    std::int32_t peer, std::int32_t socket,
                                    LockstepTransportOutcome* outcome);

  // The memory must live until the request is released. Receives of envelopes
  // and controls are posted long before their messages, which must cost
  // nothing.
  LockstepTransportStatus (*post_send)(LockstepTransport* transport,
                                       const LockstepTransportMessage* message,
                                       LockstepTransportRequest** request,
                                       LockstepTransportOutcome* outcome);
  LockstepTransportStatus (*post_receive)(
      LockstepTransport* transport, const LockstepTransportMessage* message,
      LockstepTransportRequest** request, LockstepTransportOutcome* outcome);

  // Waits up to `microseconds` for the request; 0 only polls. One thread at a
  // time per request.
  LockstepTransportStatus (*wait)(LockstepTransport* transport,
                                  LockstepTransportRequest* request,
                                  std::int64_t microseconds,
                                  LockstepTransportOutcome* outcome);

  // Releases a request; when this returns, no thread touches its memory any
  // more. After the release of a request that was not done, only leave(),
  // close(), destroy() and other releases may follow.
  void (*release)(LockstepTransport* transport,
                  LockstepTransportRequest* request);

  // This rank takes no further part: peers see that at once, after all messages
  // sent before. Waits return kTransportClosed. After close() it does nothing.
  void (*leave)(LockstepTransport* transport);

  // Breaks all pending messages, here and on the peers: waits return
  // kTransportClosed. Takes milliseconds at most, independent of the peers.
  void (*close)(LockstepTransport* transport);

  // Call after every request was released. Leaves, unless leave() or close()
  // was called.
  void (*destroy)(LockstepTransport* transport);

  // Gives every process that the transport's launcher started the text of world
  // rank 0: up to `bytes` - 1 characters, at most 1,023. All processes call it;
  // waits up to `microseconds` for the others, then returns kTransportNotYet.
  // Null if world_rank() is null.
  LockstepTransportStatus (*bootstrap)(char* text, std::size_t bytes,
                                       std::int64_t microseconds,
                                       LockstepTransportOutcome* outcome);
};

constexpr std::uint32_t kTransportVersion = 4;

// The function that a plug-in exports under this name.
typedef const LockstepTransportTable* (*LockstepTransportEntry)();
#define LOCKSTEP_TRANSPORT_ENTRY "lockstep_transport"

}  // extern "C"
