// A CUDA graph of what LibTorch gives a GPU, whose memory LibTorch keeps apart
// for it.
//
// Threads: one at a time; see CapturedGraph.
// Errors:  InvalidArgument for what cannot be captured, and where LibTorch has
//          no CUDA.
// Source:  torch.cuda.CUDAGraph.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "lockstep/comm/captured_graph.h"

namespace lockstep {

class DeviceGraph : public CapturedGraph {
 public:
  using CapturedGraph::CapturedGraph;

  // From now on what the calling thread's current stream is given is captured,
  // in whichever thread; not the default stream. The current device is the
  // graph's. What is allocated meanwhile lives as long as the graph.
  virtual void begin_capture() = 0;
  // On the same thread and stream. Also to be called when what was captured has
  // failed; throws where no graph has come of it.
  virtual void end_capture() = 0;
};

// On `device`, a GPU.
std::shared_ptr<DeviceGraph> make_device_graph(c10::Device device);

// Throws the exception that is being handled, which came of what was captured:
// as InvalidArgument where it is LibTorch's, and not of memory that ran out.
[[noreturn]] void rethrow_uncapturable();

// From now on that is what `make` makes; null: LibTorch's. For tests.
using MakeDeviceGraph = std::shared_ptr<DeviceGraph> (*)(c10::Device device);
void make_device_graphs_by(MakeDeviceGraph make);

}  // namespace lockstep
