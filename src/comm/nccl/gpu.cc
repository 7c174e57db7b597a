#include "src/comm/nccl/gpu.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "src/comm/nccl/comm_memory.h"

namespace lockstep {
namespace {

[[noreturn]] void fail(LockstepGpuResult result,
                       const LockstepGpuOutcome& outcome,
                       const std::string& what) {
  const std::string text = fmt::format("{}: {}", what, outcome.text);
  switch (result) {
    case kGpuNoMemory:
      throw SystemError(
          text +
              "\n  next:    make the batch smaller, or see with nvidia-smi "
              "who else uses the device",
          ENOMEM);
    case kGpuPeerLost:
      throw NetworkError(text);
    case kGpuSpoiltCapture:
      throw InvalidArgument(
          text +
          "\n  likely:  code within the capture waited for the device, copied "
          "to the host or used work that was given to the device before"
          "\n  next:    move that code out of the capture, or do not use a "
          "graph");
    case kGpuMisuse:
    case kGpuNoDriver:
      throw InvalidArgument(text);
    case kGpuDone:
    case kGpuNotYet:
    case kGpuFailed:
      break;
  }
  throw Error(text);
}

}  // namespace

int Gpu::count(const LockstepGpuTable& table) {
  std::int32_t count = 0;
  LockstepGpuOutcome outcome{};
  const auto result = table.device_count(&count, &outcome);
  if (result != kGpuDone) fail(result, outcome, "no GPU can be used");
  return count;
}

std::string Gpu::name() const {
  std::array<char, 256> text{};
  LockstepGpuOutcome outcome{};
  check(table_->device_name(index_, text.data(), text.size(), &outcome),
        outcome, "device_name");
  return text.data();
}

std::uint64_t Gpu::capture_of(LockstepGpuStream* stream) const {
  std::uint64_t capture = 0;
  LockstepGpuOutcome outcome{};
  check(table_->stream_capture(stream, &capture, &outcome), outcome,
        "stream_capture");
  return capture;
}

bool Gpu::is_capturing(LockstepGpuStream* stream) const {
  std::uint64_t capture = 0;
  LockstepGpuOutcome outcome{};
  const auto result = table_->stream_capture(stream, &capture, &outcome);
  if (result == kGpuSpoiltCapture) return true;
  check(result, outcome, "stream_capture");
  return capture != 0;
}

void Gpu::check(LockstepGpuResult result, const LockstepGpuOutcome& outcome,
                std::string_view call) const {
  if (result != kGpuDone)
    fail(result, outcome, fmt::format("{} on GPU {}", call, index_));
}

bool Gpu::is_done(LockstepGpuResult result, const LockstepGpuOutcome& outcome,
                  std::string_view call) const {
  if (result == kGpuNotYet) return false;
  check(result, outcome, call);
  return true;
}

GpuScope::GpuScope(const Gpu& gpu) : gpu_(gpu) {
  LockstepGpuOutcome outcome{};
  gpu.check(gpu.table().use_device(gpu.index(), &previous_, &outcome), outcome,
            "use_device");
}

GpuScope::~GpuScope() {
  LockstepGpuOutcome ignored{};
  if (previous_ >= 0 && previous_ != gpu_.index())
    gpu_.table().use_device(previous_, nullptr, &ignored);
}

GpuEvent::GpuEvent(const Gpu& gpu)
    : gpu_(gpu), event_(nullptr, gpu.table().event_destroy) {
  LockstepGpuEvent* event = nullptr;
  LockstepGpuOutcome outcome{};
  gpu_.check(gpu_.table().event_create(&event, &outcome), outcome,
             "event_create");
  event_.reset(event);
}

void GpuEvent::record(LockstepGpuStream* stream) {
  LockstepGpuOutcome outcome{};
  gpu_.check(gpu_.table().event_record(event_.get(), stream, &outcome), outcome,
             "event_record");
}

void GpuEvent::hold_up(LockstepGpuStream* stream) const {
  LockstepGpuOutcome outcome{};
  gpu_.check(gpu_.table().stream_wait(stream, event_.get(), &outcome), outcome,
             "stream_wait");
}

bool GpuEvent::happened() const {
  LockstepGpuOutcome outcome{};
  return gpu_.is_done(gpu_.table().event_query(event_.get(), &outcome), outcome,
                      "event_query");
}

GpuStream::GpuStream(const Gpu& gpu)
    : stream_(nullptr, gpu.table().stream_destroy) {
  LockstepGpuStream* stream = nullptr;
  LockstepGpuOutcome outcome{};
  gpu.check(gpu.table().stream_create(&stream, &outcome), outcome,
            "stream_create");
  stream_.reset(stream);
}

GpuCommunicator::GpuCommunicator(const Gpu& gpu,
                                 const LockstepGpuCommConfig& config)
    : gpu_(gpu), stream_(gpu), memory_(CommMemory::of(config.id)) {
  LockstepGpuOutcome outcome{};
  gpu_.is_done(gpu_.table().comm_create(&config, &comm_, &outcome), outcome,
               "comm_create");
}

GpuCommunicator::~GpuCommunicator() { abort(); }

bool GpuCommunicator::is_ready() {
  LockstepGpuOutcome outcome{};
  return gpu_.is_done(gpu_.table().comm_state(comm_, &outcome), outcome,
                      "NCCL");
}

void GpuCommunicator::begin() {
  LockstepGpuOutcome outcome{};
  gpu_.check(gpu_.table().group_begin(&outcome), outcome, "group_begin");
}

void GpuCommunicator::call(const LockstepGpuCall& call) {
  LockstepGpuOutcome outcome{};
  gpu_.is_done(gpu_.table().call(comm_, &call, stream(), &outcome), outcome,
               "NCCL");
}

void GpuCommunicator::copy(void* to, const void* from, std::size_t bytes) {
  LockstepGpuOutcome outcome{};
  gpu_.check(gpu_.table().copy(to, from, bytes, stream(), &outcome), outcome,
             "copy");
}

void GpuCommunicator::end() {
  LockstepGpuOutcome outcome{};
  gpu_.is_done(gpu_.table().group_end(&outcome), outcome, "NCCL");
}

void* GpuCommunicator::register_memory(void* memory, std::size_t bytes) {
  void* handle = nullptr;
  LockstepGpuOutcome outcome{};
  gpu_.check(
      gpu_.table().register_memory(comm_, memory, bytes, &handle, &outcome),
      outcome, "register_memory");
  return handle;
}

void GpuCommunicator::unregister_memory(void* handle) noexcept {
  gpu_.table().unregister_memory(comm_, handle);
}

void GpuCommunicator::finalize() {
  LockstepGpuOutcome outcome{};
  gpu_.is_done(gpu_.table().comm_finalize(comm_, &outcome), outcome,
               "comm_finalize");
}

void GpuCommunicator::destroy() noexcept { end(gpu_.table().comm_destroy); }

void GpuCommunicator::abort() noexcept { end(gpu_.table().comm_abort); }

void GpuCommunicator::end(void (*how)(LockstepGpuComm*)) noexcept {
  if (comm_ == nullptr) return;
  std::optional<GpuScope> scope;
  try {
    scope.emplace(gpu_);
  } catch (const std::exception&) {
    // The device is lost, but NCCL's host threads end.
  }
  how(comm_);
  comm_ = nullptr;
  memory_.reset();
}

void abort_together(std::span<GpuCommunicator* const> lines,
                    const std::function<void()>& end_graphs) noexcept {
  std::vector<std::thread> threads;
  const auto begin = [&](const std::function<void()>& end) {
    try {
      threads.emplace_back(end);
    } catch (const std::system_error&) {
      end();
    }
  };
  begin(end_graphs);
  for (GpuCommunicator* const line : lines) begin([line] { line->abort(); });
  for (std::thread& thread : threads) thread.join();
}

std::string unique_id(const Gpu& gpu) {
  std::string id(kGpuUniqueIdBytes, '\0');
  LockstepGpuOutcome outcome{};
  gpu.check(gpu.table().unique_id(id.data(), &outcome), outcome, "unique_id");
  return id;
}

}  // namespace lockstep
