#include "src/comm/testing/fake_gpu/fake_gpu.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>

#include "lockstep/base/error.h"
#include "src/comm/testing/fake_gpu/fake_gpu_state.h"
#include "src/comm/testing/fake_gpu/fake_gpu_table.h"

namespace lockstep {
namespace {

std::uint64_t seed_of(const FakeGpuOptions& options) {
  if (options.seed) return *options.seed;
  const char* chosen = std::getenv("LOCKSTEP_TEST_SEED");
  if (chosen != nullptr) return std::strtoull(chosen, nullptr, 10);
  return std::random_device{}();
}

}  // namespace

FakeGpu::FakeGpu(const FakeGpuOptions& options)
    : seed_(seed_of(options)),
      state_(std::make_unique<FakeGpuState>(options, seed_)) {
  set_current_fake_gpu(state_.get());
}

FakeGpu::~FakeGpu() {
  set_current_fake_gpu(nullptr);
  if (testing::Test::HasFailure())
    std::cerr << "FakeGpu: LOCKSTEP_TEST_SEED=" << seed_ << '\n';
}

const LockstepGpuTable& FakeGpu::table() const { return fake_gpu_table(); }

std::vector<std::string> FakeGpu::violations() const {
  const MutexLock lock(state_->mutex);
  return state_->violations();
}

void FakeGpu::host_reads(const void* memory, std::size_t bytes) {
  const MutexLock lock(state_->mutex);
  state_->host_uses({MemoryUse::Kind::kReads, memory, bytes});
}

void FakeGpu::host_writes(const void* memory, std::size_t bytes) {
  const MutexLock lock(state_->mutex);
  state_->host_uses({MemoryUse::Kind::kWrites, memory, bytes});
}

void FakeGpu::forget(const void* memory, std::size_t bytes) {
  const MutexLock lock(state_->mutex);
  state_->forget(memory, bytes);
}

void FakeGpu::hear_from_all_threads() {
  const MutexLock lock(state_->mutex);
  state_->hear_from_all_threads();
}

bool FakeGpu::has_happened(LockstepGpuEvent* event) {
  const MutexLock lock(state_->mutex);
  return state_->has_happened(event);
}

void FakeGpu::begin_capture(LockstepGpuStream* stream) {
  const MutexLock lock(state_->mutex);
  const FakeOutcome outcome = state_->begin_capture(stream);
  LOCKSTEP_CHECK(outcome.result == kGpuDone, outcome.text);
}

std::shared_ptr<FakeCapture> FakeGpu::end_capture(LockstepGpuStream* stream,
                                                  std::string* why) {
  const MutexLock lock(state_->mutex);
  std::shared_ptr<FakeCapture> graph;
  *why = state_->end_capture(stream, &graph).text;
  return graph;
}

void FakeGpu::spoil_capture(LockstepGpuStream* stream, const std::string& why) {
  const MutexLock lock(state_->mutex);
  state_->spoil_capture(stream, why);
}

void FakeGpu::launch(const FakeCapture& graph, LockstepGpuStream* stream) {
  const MutexLock lock(state_->mutex);
  const FakeOutcome outcome = state_->launch(graph, stream);
  LOCKSTEP_CHECK(outcome.result == kGpuDone, outcome.text);
}

void FakeGpu::compute(FakeKernel kernel, LockstepGpuStream* stream) {
  const MutexLock lock(state_->mutex);
  const FakeOutcome outcome = state_->compute(std::move(kernel), stream);
  LOCKSTEP_CHECK(outcome.result == kGpuDone, outcome.text);
}

bool FakeGpu::carry_out_all() {
  const MutexLock lock(state_->mutex);
  return state_->carry_out_all();
}

void FakeGpu::fail_comm(LockstepGpuComm* comm, LockstepGpuResult result,
                        const std::string& text) {
  const MutexLock lock(state_->mutex);
  if (const auto found = state_->comms().find(comm))
    state_->comms().fail(*found, {result, text});
}

void FakeGpu::fail_comms_of(int device, LockstepGpuResult result,
                            const std::string& text) {
  const MutexLock lock(state_->mutex);
  state_->comms().fail_all_of(device, {result, text});
}

void FakeGpu::fail_device(int device, const std::string& text) {
  const MutexLock lock(state_->mutex);
  state_->fail_device(device, text);
}

void FakeGpu::kill(int device) {
  const MutexLock lock(state_->mutex);
  state_->comms().kill(device);
}

void FakeGpu::set_host(const std::string& host) {
  const MutexLock lock(state_->mutex);
  state_->set_host(host);
}

void FakeGpu::share_bus(int device, int other) {
  const MutexLock lock(state_->mutex);
  state_->share_bus(device, other);
}

void FakeGpu::set_memory(Memory memory) {
  const MutexLock lock(state_->mutex);
  state_->set_memory(memory);
}

void FakeGpu::lose_driver(const std::string& text) {
  const MutexLock lock(state_->mutex);
  state_->lose_driver(text);
}

void FakeGpu::show_devices(int devices) {
  const MutexLock lock(state_->mutex);
  state_->show_devices(devices);
}

FakeGpu::Alive FakeGpu::alive() const {
  const MutexLock lock(state_->mutex);
  return state_->alive();
}

}  // namespace lockstep
