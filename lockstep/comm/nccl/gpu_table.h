// The border between our code and what a GPU needs: a C table of some twenty
// functions over CUDA's streams and events and NCCL's communicators.
//
// The plug-in liblockstep_nccl.so exports one over the real libraries; tests
// have another over memory of the host (comm/testing/fake_gpu.h), which runs
// things late and out of order. All our code on top of either is the same, and
// neither CUDA's nor NCCL's headers are seen by it. Only plain data crosses the
// border.
//
// Streams and memory may be another library's: a GpuStream* is a cudaStream_t
// (null: the device's default stream), a pointer is a device's address.
//
// Threads: every function may be called from any thread, but those that end a
//          thing, which come last. use_device() is of the calling thread, as
//          are group_begin() and group_end() and what lies between.
// Errors:  a result and an Outcome; nothing is thrown across the border.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

enum LockstepGpuResult : std::int32_t {
  kGpuDone = 0,
  kGpuNotYet = 1,         // under way: ask again
  kGpuNoMemory = 2,       // the device's, or the host's
  kGpuPeerLost = 3,       // NCCL has lost the connection to some rank
  kGpuMisuse = 4,         // an argument that can never work
  kGpuNoDriver = 5,       // none, or one too old for the toolkit
  kGpuFailed = 6,         // anything else
  kGpuSpoiltCapture = 7,  // a stream's capture, which can become no graph
};

struct LockstepGpuOutcome {
  char text[512];  // the library's words
};

typedef struct LockstepGpuStream LockstepGpuStream;
typedef struct LockstepGpuEvent LockstepGpuEvent;
typedef struct LockstepGpuComm LockstepGpuComm;

constexpr std::size_t kGpuUniqueIdBytes = 128;

struct LockstepGpuCommConfig {
  std::int32_t rank;
  std::int32_t size;
  const char* id;    // unique_id() of one of the ranks: kGpuUniqueIdBytes
  const char* name;  // the group's, for the library's log
};

enum LockstepGpuKind : std::int32_t {
  kGpuAllReduce = 0,
  kGpuBroadcast = 1,  // in place
  kGpuReduce = 2,     // only the root's `to` changes
  kGpuAllGather = 3,
  kGpuReduceScatter = 4,
  kGpuSend = 5,
  kGpuReceive = 6,
};

enum LockstepGpuSum : std::int32_t {
  kGpuSum = 0,
  kGpuProduct = 1,
  kGpuMin = 2,
  kGpuMax = 3,
  kGpuAverage = 4,
};

struct LockstepGpuCall {
  LockstepGpuKind kind;
  LockstepGpuSum sum;  // of the kinds that reduce
  std::int32_t type;   // a DataType's number, but never bool
  std::int32_t peer;   // the root; to whom, from whom
  const void* from;
  void* to;
  // As NCCL counts: elements that a rank brings (all_gather), gets
  // (reduce_scatter), both (the rest).
  std::size_t count;
};

struct LockstepGpuTable {
  std::uint32_t version;  // kGpuTableVersion
  const char* libraries;  // "CUDA 13.0, NCCL 2.28.3"

  // kGpuNoDriver with a text that says what to do.
  LockstepGpuResult (*device_count)(std::int32_t* count,
                                    LockstepGpuOutcome* outcome);
  // What tells this device from all others in the world: its UUID, as text of
  // up to `bytes` - 1 characters.
  LockstepGpuResult (*device_name)(std::int32_t device, char* text,
                                   std::size_t bytes,
                                   LockstepGpuOutcome* outcome);
  // Where the calling thread's streams, events, memory and communicators are
  // made and used from now on, and where they were before; -1 for a device that
  // this process has not used: going back to it would take memory there.
  LockstepGpuResult (*use_device)(std::int32_t device, std::int32_t* previous,
                                  LockstepGpuOutcome* outcome);

  // One that does not wait for the default stream.
  LockstepGpuResult (*stream_create)(LockstepGpuStream** stream,
                                     LockstepGpuOutcome* outcome);
  void (*stream_destroy)(LockstepGpuStream* stream);
  // What is given to `stream` after this begins when `event` has happened.
  LockstepGpuResult (*stream_wait)(LockstepGpuStream* stream,
                                   LockstepGpuEvent* event,
                                   LockstepGpuOutcome* outcome);
  // Which capture of a graph `stream` is in, and with it what it is given; 0:
  // in none, as the default stream always. A stream gets into one by waiting
  // for an event of it. kGpuSpoiltCapture once that can become no graph.
  LockstepGpuResult (*stream_capture)(LockstepGpuStream* stream,
                                      std::uint64_t* capture,
                                      LockstepGpuOutcome* outcome);
  LockstepGpuResult (*event_create)(LockstepGpuEvent** event,
                                    LockstepGpuOutcome* outcome);
  void (*event_destroy)(LockstepGpuEvent* event);
  // It happens, anew, when all that was given to `stream` before is done.
  LockstepGpuResult (*event_record)(LockstepGpuEvent* event,
                                    LockstepGpuStream* stream,
                                    LockstepGpuOutcome* outcome);
  // kGpuDone when it has happened; kGpuFailed for an error of the device.
  LockstepGpuResult (*event_query)(LockstepGpuEvent* event,
                                   LockstepGpuOutcome* outcome);

  // Device memory that NCCL may register, zeroed.
  LockstepGpuResult (*allocate)(void** memory, std::size_t bytes,
                                LockstepGpuOutcome* outcome);
  // Nothing on the device uses it any more, and it is registered nowhere. May
  // wait for the whole device.
  void (*release)(void* memory);
  // Between any two places, in the stream's order.
  LockstepGpuResult (*copy)(void* to, const void* from, std::size_t bytes,
                            LockstepGpuStream* stream,
                            LockstepGpuOutcome* outcome);

  LockstepGpuResult (*unique_id)(char* id, LockstepGpuOutcome* outcome);
  // All ranks call it; it waits for none of them. Until comm_state() says done
  // only that and comm_abort() may follow.
  LockstepGpuResult (*comm_create)(const LockstepGpuCommConfig* config,
                                   LockstepGpuComm** comm,
                                   LockstepGpuOutcome* outcome);
  // kGpuNotYet while it is being made, or a group_end() goes on; kGpuPeerLost
  // or kGpuFailed once anything went wrong.
  LockstepGpuResult (*comm_state)(LockstepGpuComm* comm,
                                  LockstepGpuOutcome* outcome);
  // The calling thread uses the communicator's device, here and by
  // comm_destroy(): NCCL takes memory on the one where the thread was before.
  // Ends what is under way on this rank: streams go on, at once or a moment
  // later, with memory in any state. The last of this process's ranks that ends
  // the communicator frees it for all of them. Never waits for a peer.
  void (*comm_abort)(LockstepGpuComm* comm);
  // Begins the end in good order of one of which nothing is under way; then
  // comm_state() says when it is complete on this rank.
  LockstepGpuResult (*comm_finalize)(LockstepGpuComm* comm,
                                     LockstepGpuOutcome* outcome);
  // Ends one that all ranks of this host have finalized: it would wait for
  // them. What it frees is freed as by comm_abort().
  void (*comm_destroy)(LockstepGpuComm* comm);

  // Calls between the two are one operation: none waits for another.
  LockstepGpuResult (*group_begin)(LockstepGpuOutcome* outcome);
  // kGpuNotYet: comm_state() of each says when it is started.
  LockstepGpuResult (*group_end)(LockstepGpuOutcome* outcome);
  // Started in the stream's order.
  LockstepGpuResult (*call)(LockstepGpuComm* comm, const LockstepGpuCall* call,
                            LockstepGpuStream* stream,
                            LockstepGpuOutcome* outcome);

  // Lets NCCL reach memory without a copy, where it can; kGpuDone also where it
  // can on no rank, with a null `handle`. Memory is registered once, and both
  // are called only when comm_state() says done, and not within a group. Of a
  // collective all ranks' memory must be registered, or none's.
  LockstepGpuResult (*register_memory)(LockstepGpuComm* comm, void* memory,
                                       std::size_t bytes, void** handle,
                                       LockstepGpuOutcome* outcome);
  // No call that uses the memory is under way. May wait for the whole device.
  // The end of a communicator does it for all that is left, but only when the
  // last of this process's ranks ends it: until then none may be released.
  void (*unregister_memory)(LockstepGpuComm* comm, void* handle);
};

constexpr std::uint32_t kGpuTableVersion = 4;

// What the plug-in exports, under this name.
typedef const LockstepGpuTable* (*LockstepGpuEntry)();
#define LOCKSTEP_GPU_ENTRY "lockstep_gpu"

}  // extern "C"
