// A graph of a FakeGpu stream's tasks, as a tensor library would capture it.
//
// Threads: one thread at a time.
// Errors:  InvalidArgument for an invalidated capture.
#pragma once

#include <memory>

#include "src/comm/operation/captured_graph.h"
#include "src/comm/testing/fake_gpu/fake_gpu.h"

namespace lockstep {

class FakeGpuGraph : public CapturedGraph {
 public:
  // Captures `stream` from now on; the calling thread must use its device.
  FakeGpuGraph(FakeGpu& gpu, Device device, LockstepGpuStream* stream);
  ~FakeGpuGraph() override;

  void end_capture();
  void launch(void* stream) override;

 private:
  void free() noexcept override { capture_.reset(); }

  FakeGpu& gpu_;
  LockstepGpuStream* stream_;  // null once its capture has ended
  std::shared_ptr<FakeCapture> capture_;
};

}  // namespace lockstep
