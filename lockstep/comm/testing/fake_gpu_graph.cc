#include "lockstep/comm/testing/fake_gpu_graph.h"

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
  captured_ = gpu_.end_capture(std::exchange(stream_, nullptr), &why);
  if (!captured_) throw InvalidArgument("the capture is spoilt: " + why);
}

void FakeGpuGraph::launch(void* stream) {
  LOCKSTEP_CHECK(captured_, "there is nothing to launch");
  gpu_.launch(*captured_, static_cast<LockstepGpuStream*>(stream));
}

void FakeGpuGraph::end() noexcept {
  captured_.reset();
  ended_ = true;
}

}  // namespace lockstep
