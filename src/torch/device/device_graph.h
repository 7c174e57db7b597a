// A CUDA graph of LibTorch's work on a GPU, with a memory pool of its own.
//
// Threads: one thread at a time; see CapturedGraph.
// Errors:  InvalidArgument for work that cannot be captured, and where LibTorch
//          has no CUDA.
// Source:  torch.cuda.CUDAGraph.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "src/comm/operation/captured_graph.h"

namespace lockstep {

class DeviceGraph : public CapturedGraph {
 public:
  using CapturedGraph::CapturedGraph;

  // Captures all later work of the calling thread's current stream, from any
  // thread; the stream must not be the default one. The current device must be
  // the graph's. Memory that is allocated meanwhile lives as long as the graph.
  virtual void begin_capture() = 0;
  // Call it on the same thread and stream, also when the captured work has
  // failed; throws if the capture made no graph.
  virtual void end_capture() = 0;
};

// A graph on `device`, a GPU.
std::shared_ptr<DeviceGraph> make_device_graph(c10::Device device);

// A scope in which a pass of this process is captured. The pass runs on
// autograd's threads too, hence the process's.
class CaptureScope {
 public:
  CaptureScope();
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;
};
// Whether there is one: code must not read values of the device then.
bool is_capturing();

// Rethrows the exception being handled, which the captured work threw: as
// InvalidArgument if it is LibTorch's and does not report that memory ran out.
[[noreturn]] void rethrow_uncapturable();

// make_device_graph() calls `make` from now on; null: LibTorch's. For tests.
using MakeDeviceGraph = std::shared_ptr<DeviceGraph> (*)(c10::Device device);
void make_device_graphs_by(MakeDeviceGraph make);

}  // namespace lockstep
