// Work of a GPU that was captured once, a CUDA graph, to be given to it again
// and again by one call; with what of it is a process group's.
//
// While a stream is captured, a group on GPUs gives its operations to the graph
// instead of the device: to one that was attached to it before.
//
//     // the current stream is being captured, for `graph`
//     group->attach(graph);
//     loss_of(model(images)).backward();   // all_reduce and the like
//     // the capture ends
//     group->replay(graph).wait();         // as often as wanted
//
// Every rank captures the same operations, and replays the same graph as often:
// a replay is a collective, compared between the ranks, recorded, and ended by
// a deadline or a rank's death like any other. Buffers keep their places, and
// stay alive as long as the graph.
//
// Threads: one at a time, but for end(), which any thread calls at any time.
// Source:  "NCCL and CUDA Graphs" in NCCL's user guide.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/buffer.h"

namespace lockstep {

class CapturedGraph : public std::enable_shared_from_this<CapturedGraph> {
 public:
  // What a group has in it.
  struct Contents {
    std::uint32_t operations = 0;  // how many
    // Of which of the group's collectives these were, and their kinds, types
    // and counts.
    std::uint32_t hash = 0;
  };

  explicit CapturedGraph(Device device) : device_(device) {}
  virtual ~CapturedGraph() = default;
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  // Gives all of it to `stream`, a cudaStream_t. Waits for nothing but room
  // among what the device has been given.
  virtual void launch(void* stream) = 0;

  // Frees it, if need be as soon as its capture has ended: the group ends, and
  // NCCL waits for the graphs that use its communicator. Not launched any more,
  // but may be under way on the device.
  void end() noexcept;
  bool ended() const;

  // That of the stream that was captured.
  Device device() const { return device_; }
  Contents contents() const { return contents_.value_or(Contents{}); }
  bool is_attached() const { return contents_.has_value(); }
  // The group's, to which the graph is attached from then on.
  void set_contents(const Contents& contents) { contents_ = contents; }

 protected:
  // To be called once the capture is over, and launch() could follow. Throws
  // Error, and has freed it, where it was ended meanwhile.
  void captured();

  // Lets go of what was captured. Called at most once.
  virtual void free() noexcept = 0;

 private:
  const Device device_;
  std::optional<Contents> contents_;
  mutable Mutex mutex_;
  bool captured_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep
