// A graph of what a stream of a FakeGpu is given, as the library of tensors
// would capture it.
//
// Threads: one at a time.
// Errors:  InvalidArgument for what was captured and can become no graph.
#pragma once

#include <memory>

#include "lockstep/comm/captured_graph.h"
#include "lockstep/comm/testing/fake_gpu.h"

namespace lockstep {

class FakeGpuGraph : public CapturedGraph {
 public:
  // `stream` is captured from now on; on a device that the calling thread uses.
  FakeGpuGraph(FakeGpu& gpu, Device device, LockstepGpuStream* stream);
  ~FakeGpuGraph() override;

  void end_capture();
  void launch(void* stream) override;

 private:
  void free() noexcept override { capture_.reset(); }

  FakeGpu& gpu_;
  LockstepGpuStream* stream_;  // null once it is not captured any more
  std::shared_ptr<FakeCapture> capture_;
};

}  // namespace lockstep
