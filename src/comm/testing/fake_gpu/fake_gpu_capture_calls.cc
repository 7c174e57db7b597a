// Captures of a fake GPU's streams, and the resulting graphs.
#include <algorithm>
#include <utility>

#include "src/comm/testing/fake_gpu/fake_gpu_state.h"

namespace lockstep {

FakeOutcome FakeGpuState::stream_capture(LockstepGpuStream* handle,
                                         std::uint64_t* capture) {
  *capture = 0;
  if (handle == nullptr) return {};
  const auto stream = streams_.find(handle, thread().device);
  if (!stream) return {kGpuMisuse, "invalid resource handle"};
  if (!stream->capture) return {};
  if (!stream->capture->spoilt().empty())
    return {kGpuSpoiltCapture, stream->capture->spoilt()};
  *capture = stream->capture->id();
  return {};
}

FakeOutcome FakeGpuState::begin_capture(LockstepGpuStream* handle) {
  if (handle == nullptr)
    return {kGpuMisuse, "the default stream cannot be captured"};
  const auto stream = streams_.find(handle, thread().device);
  if (!stream) return {kGpuMisuse, "invalid resource handle"};
  if (stream->capture) return {kGpuMisuse, "the stream is captured already"};
  const auto capture = std::make_shared<FakeCapture>(++tasks_);
  capture->take(stream);
  std::erase_if(captures_, [](const auto& one) { return one.expired(); });
  captures_.push_back(capture);
  return {};
}

// A stream joins a capture by waiting for an event of it; a captured stream
// must not wait for an event outside of its capture.
FakeOutcome FakeGpuState::join_capture(
    const std::shared_ptr<FakeStream>& stream, const FakeMoment& moment) {
  const auto its = moment.capture.lock();
  if (stream->capture && stream->capture != its) {
    stream->capture->spoil(stream->name() +
                           " waits for an event that is not of its capture");
    return {kGpuSpoiltCapture, stream->capture->spoilt()};
  }
  if (!moment.is_captured || stream->capture) return {};
  if (!its || !its->is_open())
    return {kGpuSpoiltCapture, "the event is of a capture that has ended"};
  its->take(stream);
  return {};
}

FakeOutcome FakeGpuState::end_capture(LockstepGpuStream* handle,
                                      std::shared_ptr<FakeCapture>* graph) {
  const auto stream = streams_.find(handle, thread().device);
  if (!stream || !stream->capture)
    return {kGpuMisuse, "the stream is not captured"};
  const auto capture = stream->capture;
  comms_.end_capture(*capture);
  capture->end();
  if (!capture->spoilt().empty()) return {kGpuSpoiltCapture, capture->spoilt()};
  *graph = capture;
  return {};
}

void FakeGpuState::spoil_capture(LockstepGpuStream* handle,
                                 const std::string& why) {
  const auto stream = streams_.find(handle, thread().device);
  if (stream && stream->capture) stream->capture->spoil(why);
}

FakeOutcome FakeGpuState::compute(FakeKernel kernel,
                                  LockstepGpuStream* handle) {
  const auto stream = streams_.find(handle, thread().device);
  if (!stream) return {kGpuMisuse, "invalid resource handle"};
  FakeTask made = task(FakeTask::Kind::kKernel, "kernel", *stream);
  made.kernel = std::move(kernel);
  streams_.give(*stream, std::move(made));
  return {};
}

// The stream replaces the first captured stream; the others are new streams.
// Events that were recorded and waited for among them are so again.
FakeOutcome FakeGpuState::launch(const FakeCapture& graph,
                                 LockstepGpuStream* handle) {
  const auto stream = streams_.find(handle, thread().device);
  if (!stream) return {kGpuMisuse, "invalid resource handle"};
  std::vector<std::shared_ptr<FakeStream>> streams{stream};
  while (streams.size() < graph.stream_count())
    streams.push_back(streams_.create_hidden(stream->device));
  std::map<const FakeMoment*, std::shared_ptr<FakeMoment>> moments;
  for (const FakeCommand& command : graph.commands()) {
    if (!command.calls.empty()) {
      const auto comm = command.comm.lock();
      if (!comm || !comms_.exists(*comm)) {
        memory_.complain("a graph is launched whose communicator has ended");
        continue;
      }
      auto calls = command.calls;
      for (FakeCall& call : calls)
        call.stream = streams[graph.number_of(*call.stream)];
      comms_.replay(*comm, std::move(calls), thread().host->knows);
      continue;
    }
    FakeTask again = command.task;
    again.host = thread().host->knows;
    again.due = chance_.draw_due();
    if (again.kind == FakeTask::Kind::kRecord)
      moments[again.moment.get()] = std::make_shared<FakeMoment>();
    if (again.moment) again.moment = moments.at(again.moment.get());
    streams_.give(*streams[command.stream], std::move(again));
  }
  return {};
}

bool FakeGpuState::has_graph_of(LockstepGpuComm* handle) {
  const auto comm = comms_.find(handle);
  return comm && std::ranges::any_of(captures_, [&](const auto& one) {
           const auto capture = one.lock();
           return capture && capture->uses(*comm);
         });
}

}  // namespace lockstep
