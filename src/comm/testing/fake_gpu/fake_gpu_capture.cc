#include "src/comm/testing/fake_gpu/fake_gpu_capture.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/comm/testing/fake_gpu/fake_gpu_comm.h"

namespace lockstep {

void FakeCapture::take(const std::shared_ptr<FakeStream>& stream) {
  stream->capture = shared_from_this();
  streams_.push_back(stream);
  known_.emplace_back();
}

std::size_t FakeCapture::number_of(const FakeStream& stream) const {
  const auto found = std::ranges::find(
      streams_, &stream,
      [](const auto& its) -> const FakeStream* { return its.get(); });
  return static_cast<std::size_t>(found - streams_.begin());
}

void FakeCapture::add(FakeStream& stream, FakeTask task) {
  const std::size_t number = number_of(stream);
  VectorClock& knows = known_[number];
  knows.tick(number);
  if (task.kind == FakeTask::Kind::kRecord) {
    task.moment->is_captured = true;
    task.moment->capture = weak_from_this();
    task.moment->knows = knows;
  }
  if (task.kind == FakeTask::Kind::kWait) knows.join(task.moment->knows);
  commands_.push_back({.stream = number, .task = std::move(task)});
}

void FakeCapture::add_calls(const std::shared_ptr<FakeComm>& comm,
                            const std::vector<FakeCall>& calls) {
  for (const FakeCall& call : calls) {
    if (call.stream->capture.get() != this)
      return spoil(*call.text + " is on a stream that is not captured");
    const std::size_t number = number_of(*call.stream);
    known_[number].tick(number);
  }
  commands_.push_back({.comm = comm, .calls = calls});
}

void FakeCapture::spoil(const std::string& why) {
  if (spoilt_.empty()) spoilt_ = why;
}

void FakeCapture::end() {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (known_[0].of(i) < known_[i].of(i))
      spoil(fmt::format("the first stream of the capture has not waited for {}",
                        streams_[i]->name()));
    streams_[i]->capture.reset();
  }
  open_ = false;
}

bool FakeCapture::uses(const FakeComm& comm) const {
  return std::ranges::any_of(commands_, [&](const FakeCommand& command) {
    return command.comm.lock().get() == &comm;
  });
}

}  // namespace lockstep
