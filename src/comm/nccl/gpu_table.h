// The border between our code and the GPU libraries: a C table of some twenty
// functions over CUDA's streams and events and NCCL's communicators.
//
// The plug-in liblockstep_nccl.so exports a table over the real libraries;
// tests have another over host memory (src/comm/testing/fake_gpu/fake_gpu.h),
// which runs tasks late and out of order. Our code on top is the same for both,
// and includes neither CUDA's nor NCCL's headers. Only plain data crosses the
// border.
//
// Streams and memory may belong to another library: a GpuStream* is a
// cudaStream_t (null: the device's default stream), a pointer is a device
// address.
//
// Threads: every function may be called from any thread, except that the one
//          that ends an object comes last. use_device() affects the calling
//          thread only, as do group_begin(), group_end() and the calls between
//          them.
// Errors:  a result and an Outcome; no exception crosses the border.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

enum LockstepGpuResult : std::int32_t {
  kGpuDone = 0,
  kGpuNotYet = 1,         // under way: call again
  kGpuNoMemory = 2,       // on the device or the host
  kGpuPeerLost = 3,       // NCCL has lost the connection to a rank
  kGpuMisuse = 4,         // an invalid argument
  kGpuNoDriver = 5,       // missing, or too old for the toolkit
  kGpuFailed = 6,         // anything else
  kGpuSpoiltCapture = 7,  // a stream's capture is invalidated
};

struct LockstepGpuOutcome {
  char text[512];  // the library's error text
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
  std::int32_t peer;   // the root, the receiver or the sender
  const void* from;
  void* to;
  // As NCCL counts: elements that a rank contributes (all_gather), gets
  // (reduce_scatter), or both (the others).
  std::size_t count;
};

struct LockstepGpuTable {
  std::uint32_t version;  // kGpuTableVersion
  const char* libraries;  // "CUDA 13.0, NCCL 2.28.3"

  // Returns kGpuNoDriver with a text that gives the next step.
  LockstepGpuResult (*device_count)(std::int32_t* count,
                                    LockstepGpuOutcome* outcome);
  // The device's globally unique name: its UUID, as text of up to `bytes` - 1
  // characters.
  LockstepGpuResult (*device_name)(std::int32_t device, char* text,
                                   std::size_t bytes,
                                   LockstepGpuOutcome* outcome);
  // Sets the device for the calling thread's streams, events, memory and
  // communicators, and returns the previous one; -1 for a device that this
  // process has not used: selecting it again would take memory there.
  LockstepGpuResult (*use_device)(std::int32_t device, std::int32_t* previous,
                                  LockstepGpuOutcome* outcome);

  // Makes a stream that does not wait for the default stream.
  LockstepGpuResult (*stream_create)(LockstepGpuStream** stream,
                                     LockstepGpuOutcome* outcome);
  void (*stream_destroy)(LockstepGpuStream* stream);
  // Makes work that is given to `stream` after this wait for `event`.
  LockstepGpuResult (*stream_wait)(LockstepGpuStream* stream,
                                   LockstepGpuEvent* event,
                                   LockstepGpuOutcome* outcome);
  // The graph capture that `stream` and its work are part of; 0: none, always
  // so for the default stream. A stream joins a capture by waiting for an event
  // of it. kGpuSpoiltCapture once the capture is invalidated.
  LockstepGpuResult (*stream_capture)(LockstepGpuStream* stream,
                                      std::uint64_t* capture,
                                      LockstepGpuOutcome* outcome);
  LockstepGpuResult (*event_create)(LockstepGpuEvent** event,
                                    LockstepGpuOutcome* outcome);
  void (*event_destroy)(LockstepGpuEvent* event);
  // Records the event anew: it happens when all work given to `stream` before
  // is done.
  LockstepGpuResult (*event_record)(LockstepGpuEvent* event,
                                    LockstepGpuStream* stream,
                                    LockstepGpuOutcome* outcome);
  // kGpuDone when the event has happened; kGpuFailed for a device error.
  LockstepGpuResult (*event_query)(LockstepGpuEvent* event,
                                   LockstepGpuOutcome* outcome);

  // Device memory that NCCL may register, zeroed.
  LockstepGpuResult (*allocate)(void** memory, std::size_t bytes,
                                LockstepGpuOutcome* outcome);
  // Requires that the device does not use the memory any more and that it is
  // not registered. May wait for the whole device.
  void (*release)(void* memory);
  // Copies between any two addresses, in the stream's order.
  LockstepGpuResult (*copy)(void* to, const void* from, std::size_t bytes,
                            LockstepGpuStream* stream,
                            LockstepGpuOutcome* outcome);

  LockstepGpuResult (*unique_id)(char* id, LockstepGpuOutcome* outcome);
  // All ranks call it; it does not wait for them. Until comm_state() returns
  // kGpuDone, only comm_state() and comm_abort() may be called.
  LockstepGpuResult (*comm_create)(const LockstepGpuCommConfig* config,
                                   LockstepGpuComm** comm,
                                   LockstepGpuOutcome* outcome);
  // kGpuNotYet while the communicator is being made or a group_end() continues;
  // kGpuPeerLost or kGpuFailed after an error.
  LockstepGpuResult (*comm_state)(LockstepGpuComm* comm,
                                  LockstepGpuOutcome* outcome);
  // The calling thread must use the communicator's device, here and for
  // comm_destroy(): NCCL takes memory on the thread's current device. Ends
  // calls under way on this rank: streams continue, at once or a moment later,
  // with undefined memory contents. The last of this process's ranks that ends
  // the communicator frees it for all of them. Never waits for a peer.
  void (*comm_abort)(LockstepGpuComm* comm);
  // Begins the orderly end of a communicator without calls under way;
  // comm_state() then reports when it is complete on this rank.
  LockstepGpuResult (*comm_finalize)(LockstepGpuComm* comm,
                                     LockstepGpuOutcome* outcome);
  // Ends a communicator that all ranks of this host have finalized: otherwise
  // it would wait for them. Frees resources as comm_abort() does.
  void (*comm_destroy)(LockstepGpuComm* comm);

  // Calls between the two form one operation: no call waits for another.
  LockstepGpuResult (*group_begin)(LockstepGpuOutcome* outcome);
  // kGpuNotYet: comm_state() of each communicator reports when its calls are
  // started.
  LockstepGpuResult (*group_end)(LockstepGpuOutcome* outcome);
  // Starts a call in the stream's order.
  LockstepGpuResult (*call)(LockstepGpuComm* comm, const LockstepGpuCall* call,
                            LockstepGpuStream* stream,
                            LockstepGpuOutcome* outcome);

  // Lets NCCL access memory without a copy, if it can; if it can on no rank,
  // returns kGpuDone with a null `handle`. Memory is registered once; both
  // functions are called only when comm_state() returns kGpuDone, and not
  // within a group. In a collective either all ranks' memory must be registered
  // or no rank's.
  LockstepGpuResult (*register_memory)(LockstepGpuComm* comm, void* memory,
                                       std::size_t bytes, void** handle,
                                       LockstepGpuOutcome* outcome);
  // Requires that no call uses the memory. May wait for the whole device. The
  // end of a communicator unregisters the rest, but only when the last of this
  // process's ranks ends it: until then that memory must not be released.
  void (*unregister_memory)(LockstepGpuComm* comm, void* handle);
};

constexpr std::uint32_t kGpuTableVersion = 4;

// The function that the plug-in exports under this name.
typedef const LockstepGpuTable* (*LockstepGpuEntry)();
#define LOCKSTEP_GPU_ENTRY "lockstep_gpu"

}  // extern "C"
