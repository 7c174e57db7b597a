// A CUDA graph: GPU work that is captured once and launched many times by one
// call. The class also records which collectives of a process group it
// contains.
//
// While a stream is captured, a group on GPUs adds its operations to the graph
// that was attached before, instead of launching them on the device.
//
//     // the current stream is being captured, for `graph`
//     group->attach(graph);
//     loss_of(model(images)).backward();   // all_reduce and the like
//     // the capture ends
//     group->replay(graph).wait();         // as often as wanted
//
// Every rank captures the same operations and replays the graph equally often:
// a replay is a collective, which is compared between the ranks, recorded, and
// ended by a deadline or a rank's death like any other. Buffers keep their
// addresses and must live as long as the graph.
//
// Threads: one thread at a time, except end(), which any thread may call at any
//          time.
// Source:  "NCCL and CUDA Graphs" in NCCL's user guide.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/base/buffer.h"
#include "src/base/mutex.h"

namespace lockstep {

class CapturedGraph : public std::enable_shared_from_this<CapturedGraph> {
 public:
  // The group's operations in the graph.
  struct Contents {
    std::uint32_t operations = 0;  // how many
    // A hash of their positions among the group's collectives, their kinds,
    // types and counts.
    std::uint32_t hash = 0;
  };

  explicit CapturedGraph(Device device) : device_(device) {}
  virtual ~CapturedGraph() = default;
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  // Launches the graph on `stream`, a cudaStream_t. Waits only for room in the
  // device's queue.
  virtual void launch(void* stream) = 0;

  // Frees the graph, or frees it as soon as its capture has ended: the group
  // ends, and NCCL waits for the graphs that use its communicator. The graph is
  // not launched any more, but may still run on the device.
  void end() noexcept;
  bool ended() const;

  // The device of the captured stream.
  Device device() const { return device_; }
  Contents contents() const { return contents_.value_or(Contents{}); }
  bool is_attached() const { return contents_.has_value(); }
  // Set by the group, to which the graph is attached from then on.
  void set_contents(const Contents& contents) { contents_ = contents; }

 protected:
  // The subclass calls this once the capture is over and launch() could follow.
  // Throws Error, after freeing the graph, if end() was called meanwhile.
  void captured();

  // Releases the captured graph. Called at most once.
  virtual void free() noexcept = 0;

 private:
  const Device device_;
  std::optional<Contents> contents_;
  mutable Mutex mutex_;
  bool captured_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep
