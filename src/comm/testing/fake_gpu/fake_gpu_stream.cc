#include "src/comm/testing/fake_gpu/fake_gpu_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/comm/testing/fake_gpu/fake_gpu_capture.h"

namespace lockstep {
namespace {

// About CUDA's limit.
constexpr std::size_t kMostTasks = 1000;

}  // namespace

std::vector<MemoryUse> FakeTask::uses() const {
  if (kind == Kind::kKernel) return kernel.uses;
  if (kind != Kind::kCopy) return {};
  return {{MemoryUse::Kind::kReads, from, bytes},
          {MemoryUse::Kind::kWrites, to, bytes}};
}

std::string FakeStream::name() const {
  return fmt::format("stream {} of device {}", actor, device);
}

FakeStreams::~FakeStreams() {
  // Operations hold the streams that hold them.
  for (const auto& stream : streams_) {
    stream->tasks.clear();
    stream->capture.reset();
  }
}

std::shared_ptr<FakeStream> FakeStreams::make(int device) {
  auto stream = std::make_shared<FakeStream>();
  stream->actor = memory_.new_actor();
  stream->device = device;
  streams_.push_back(stream);
  return stream;
}

std::shared_ptr<FakeStream> FakeStreams::create_hidden(int device) {
  drop_destroyed();
  auto stream = make(device);
  stream->ends_by_itself = true;
  return stream;
}

LockstepGpuStream* FakeStreams::create(int device) {
  return handles_.add(make(device));
}

std::shared_ptr<FakeStream> FakeStreams::find(LockstepGpuStream* handle,
                                              int device) {
  if (handle == nullptr) {
    auto& stream = default_streams_[device];
    if (!stream) stream = make(device);
    return stream;
  }
  auto stream = handles_.find(handle);
  if (!stream) memory_.complain("a stream is used that does not exist");
  return stream;
}

void FakeStreams::destroy(LockstepGpuStream* handle) {
  // As in CUDA, its tasks still run.
  if (const auto stream = handles_.take(handle))
    stream->destroyed = true;
  else
    memory_.complain("a stream is destroyed that does not exist");
  drop_destroyed();
}

void FakeStreams::drop_destroyed() {
  std::erase_if(streams_, [](const std::shared_ptr<FakeStream>& stream) {
    return (stream->destroyed || stream->ends_by_itself) &&
           stream->tasks.empty() && stream.use_count() == 1;
  });
}

void FakeStreams::give(FakeStream& stream, FakeTask task) {
  for (const MemoryUse& use : task.uses())
    memory_.check_bounds(use, -1, *task.text);
  if (stream.capture) return stream.capture->add(stream, std::move(task));
  if (stream.tasks.size() == kMostTasks)
    memory_.complain(stream.name() +
                     " is given more than a device takes without keeping the "
                     "host");
  stream.tasks.push_back(std::move(task));
}

bool FakeStreams::may_run(const FakeStream& stream) const {
  if (stream.tasks.empty() || !chance_.is_due(stream.tasks.front().due))
    return false;
  const FakeTask& task = stream.tasks.front();
  switch (task.kind) {
    case FakeTask::Kind::kCopy:
    case FakeTask::Kind::kKernel:
    case FakeTask::Kind::kRecord:
      return true;
    case FakeTask::Kind::kWait:
      return task.moment->happened;
    case FakeTask::Kind::kOperation:
      return false;
  }
  return false;
}

bool FakeStreams::step() {
  std::vector<FakeStream*> ready;
  for (const auto& stream : streams_) {
    if (may_run(*stream)) ready.push_back(stream.get());
  }
  if (ready.empty()) return false;
  run(*ready[chance_.below(ready.size())]);
  return true;
}

void FakeStreams::run(FakeStream& stream) {
  const FakeTask task = std::move(stream.tasks.front());
  stream.tasks.pop_front();
  stream.knows.join(task.host);
  stream.knows.tick(stream.actor);
  if (task.kind == FakeTask::Kind::kWait) {
    stream.knows.join(task.moment->knows);
  } else if (task.kind == FakeTask::Kind::kRecord) {
    task.moment->happened = true;
    task.moment->knows = stream.knows;
  } else {
    for (const MemoryUse& use : task.uses())
      memory_.use(use, {stream.actor, stream.knows, task.text});
    if (task.bytes != 0) std::memmove(task.to, task.from, task.bytes);
    if (task.kernel.compute) task.kernel.compute();
  }
}

bool FakeStreams::all_done() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [](const auto& stream) { return stream->tasks.empty(); });
}

void FakeStreams::for_each_task(
    const std::function<void(const FakeTask&)>& look) const {
  for (const auto& stream : streams_) {
    for (const FakeTask& task : stream->tasks) look(task);
  }
}

}  // namespace lockstep
