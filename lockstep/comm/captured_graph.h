// Work of a GPU that was captured once, a CUDA graph, to be given to it again
// and again by one call; with what of it is a process group's.
//
// While a stream is captured, a group on GPUs gives its operations to the graph
// instead of the device. Before the capture ends they are made the graph's:
//
//     // the current stream is being captured
//     loss_of(model(images)).backward();   // all_reduce and the like
//     group->attach(graph);
//     // the capture ends
//     group->replay(graph).wait();         // as often as wanted
//
// Every rank captures the same operations, and replays as often: a replay is a
// collective, compared between the ranks, recorded, and ended by a deadline or
// a rank's death like any other. Buffers keep their places, and stay alive as
// long as the graph.
//
// Threads: one at a time; launch() and end() are called by whichever thread
//          replays, or ends the group.
// Source:  "NCCL and CUDA Graphs" in NCCL's user guide.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/comm/buffer.h"

namespace lockstep {

class CapturedGraph : public std::enable_shared_from_this<CapturedGraph> {
 public:
  // What a group has in it.
  struct Contents {
    std::uint32_t operations = 0;  // how many
    std::uint32_t hash = 0;        // of their kinds, types and counts
  };

  explicit CapturedGraph(Device device) : device_(device) {}
  virtual ~CapturedGraph() = default;
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  // Gives all of it to `stream`, a cudaStream_t; waits for nothing.
  virtual void launch(void* stream) = 0;

  // Frees it: the group ends, and NCCL waits for the graphs that use its
  // communicator. Not launched any more, but may be under way on the device.
  virtual void end() noexcept = 0;

  // That of the stream that was captured.
  Device device() const { return device_; }
  const Contents& contents() const { return contents_; }
  // The group's, when the graph is attached to it.
  void set_contents(const Contents& contents) { contents_ = contents; }

 private:
  const Device device_;
  Contents contents_;
};

}  // namespace lockstep
