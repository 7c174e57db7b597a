// The border between a wire backend and the library that moves its messages: a
// C table of functions that a plug-in exports.
//
// Gloo and MPI are used as transports only: messages between two ranks, matched
// by channel and tag, in order where both are the same. Everything else (which
// message goes where, arithmetic, checks, errors) is ours and the same for all.
// Only plain data crosses the border, so that a plug-in may bring another
// standard library, or another copy of a library that the program has as well.
//
// Threads: every function may be called from any thread, but for destroy(),
//          which comes last.
// Errors:  a status and an Outcome; nothing is thrown across the border.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

enum LockstepTransportStatus : std::int32_t {
  kTransportDone = 0,
  kTransportNotYet = 1,
  kTransportBroken = 2,  // the connection to Outcome::peer is gone
  kTransportClosed = 3,  // close() was called
  kTransportFailed = 4,  // anything else; Outcome::text says what
};

enum LockstepTransportChannel : std::int32_t {
  kChannelCollective = 0,  // the elements of collectives
  kChannelLetter = 1,      // what a message is
  kChannelPayload = 2,     // the elements of a message
  kChannelControl = 3,     // what each rank called
  kTransportChannels = 4,
};

struct LockstepTransportOutcome {
  std::int32_t peer;  // whose connection broke
  char text[508];
};

struct LockstepTransportConfig {
  std::int32_t rank;
  std::int32_t size;
  // Of `size` ranks: the connected TCP socket to each (-1 for the own rank), of
  // which create() keeps a copy; null where the transport makes its own
  // connections.
  const std::int32_t* sockets;
  // Of `size` ranks: their world_rank(); null where there is none.
  const std::int32_t* world_ranks;
  const char* group;  // its name
};

struct LockstepTransportMessage {
  std::int32_t peer;
  // A group's duplicate number n has the channels from n * kTransportChannels
  // on.
  std::int32_t channel;
  std::int32_t tag;   // 0 … 2^31 - 1
  void* data;         // only read by sends
  std::size_t bytes;  // of receives: at least as many as are sent
};

typedef struct LockstepTransport LockstepTransport;
typedef struct LockstepTransportRequest LockstepTransportRequest;

struct LockstepTransportTable {
  std::uint32_t version;  // kTransportVersion

  // This process's number among those that the transport's own launcher
  // started; null where the transport has none. Fails with a text that says
  // what to do when the process was not started so.
  LockstepTransportStatus (*world_rank)(std::int32_t* rank, std::int32_t* size,
                                        LockstepTransportOutcome* outcome);

  // All ranks of the group call it.
  LockstepTransportStatus (*create)(const LockstepTransportConfig* config,
                                    LockstepTransport** transport,
                                    LockstepTransportOutcome* outcome);

  // The memory must stay until the request is released. Letters and controls
  // are received long before they are needed, which must cost nothing.
  LockstepTransportStatus (*post_send)(LockstepTransport* transport,
                                       const LockstepTransportMessage* message,
                                       LockstepTransportRequest** request,
                                       LockstepTransportOutcome* outcome);
  LockstepTransportStatus (*post_receive)(
      LockstepTransport* transport, const LockstepTransportMessage* message,
      LockstepTransportRequest** request, LockstepTransportOutcome* outcome);

  // Waits up to `microseconds` for the request; 0 only looks. One thread a
  // request at a time.
  LockstepTransportStatus (*wait)(LockstepTransport* transport,
                                  LockstepTransportRequest* request,
                                  std::int64_t microseconds,
                                  LockstepTransportOutcome* outcome);

  // Forgets a request; when this returns, nothing touches its memory any more.
  // After one that was not done only leave(), close() and destroy() may follow,
  // and other releases.
  void (*release)(LockstepTransport* transport,
                  LockstepTransportRequest* request);

  // This rank takes no further part: peers see that at once, after all that was
  // sent before. Waits return kTransportClosed. After close() it does nothing.
  void (*leave)(LockstepTransport* transport);

  // Breaks everything that is pending, here and on the peers: waits return
  // kTransportClosed. Takes milliseconds at most, whatever peers do.
  void (*close)(LockstepTransport* transport);

  // After every request was released. Leaves, unless leave() or close() was
  // called.
  void (*destroy)(LockstepTransport* transport);

  // Gives every process that the transport's launcher started the text of world
  // rank 0: of up to `bytes` - 1 characters, at most 1,023. Waits up to
  // `microseconds` for the others, all of which call it; then kTransportNotYet.
  // Null where world_rank() is.
  LockstepTransportStatus (*bootstrap)(char* text, std::size_t bytes,
                                       std::int64_t microseconds,
                                       LockstepTransportOutcome* outcome);
};

constexpr std::uint32_t kTransportVersion = 3;

// What a plug-in exports, under this name.
typedef const LockstepTransportTable* (*LockstepTransportEntry)();
#define LOCKSTEP_TRANSPORT_ENTRY "lockstep_transport"

}  // extern "C"
