#include "src/comm/testing/fake_gpu/fake_gpu_graph.h"

#include <string>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

FakeGpuGraph::FakeGpuGraph(FakeGpu& gpu, Device device,
                           LockstepGpuStream* stream)
    : CapturedGraph(device), gpu_(gpu), stream_(stream) {
  gpu_.begin_capture(stream_);
}

FakeGpuGraph::~FakeGpuGraph() {
  std::string ignored;
  if (stream_ != nullptr) gpu_.end_capture(stream_, &ignored);
}

void FakeGpuGraph::end_capture() {
  std::string why;
  capture_ = gpu_.end_capture(std::exchange(stream_, nullptr), &why);
  if (!capture_) throw InvalidArgument("the capture is spoilt: " + why);
  captured();
}

void FakeGpuGraph::launch(void* stream) {
  LOCKSTEP_CHECK(capture_, "there is nothing to launch");
  gpu_.launch(*capture_, static_cast<LockstepGpuStream*>(stream));
}

}  // namespace lockstep
