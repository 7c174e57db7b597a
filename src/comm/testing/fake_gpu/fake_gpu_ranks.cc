#include "src/comm/testing/fake_gpu/fake_gpu_ranks.h"

#include <gtest/gtest.h>

#include <array>

#include "lockstep/base/buffer.h"

namespace lockstep {
namespace {

constexpr int kManyLooks = 500;

FakeGpuOptions with_devices(FakeGpuOptions options, int devices) {
  options.devices = devices;
  return options;
}

}  // namespace

FakeGpuRanks::FakeGpuRanks(int ranks, FakeGpuOptions options)
    : fake(with_devices(options, ranks)), table(fake.table()) {
  streams_.resize(static_cast<std::size_t>(ranks));
  comms_.resize(streams_.size());
  for (int rank = 0; rank < ranks; ++rank) {
    use(rank);
    EXPECT_EQ(table.stream_create(&streams_[static_cast<std::size_t>(rank)],
                                  &outcome),
              kGpuDone);
  }
}

void FakeGpuRanks::use(int rank) {
  EXPECT_EQ(table.use_device(rank, nullptr, &outcome), kGpuDone);
}

LockstepGpuResult FakeGpuRanks::create_comm(int rank, int size,
                                            const char* id) {
  use(rank);
  const LockstepGpuCommConfig config{
      .rank = rank, .size = size, .id = id, .name = "test"};
  return table.comm_create(&config, &comms_.at(static_cast<std::size_t>(rank)),
                           &outcome);
}

void FakeGpuRanks::make_comms(int size) {
  std::array<char, kGpuUniqueIdBytes> id{};
  EXPECT_EQ(table.unique_id(id.data(), &outcome), kGpuDone);
  for (int rank = 0; rank < size; ++rank)
    EXPECT_EQ(create_comm(rank, size, id.data()), kGpuNotYet);
  for (int rank = 0; rank < size; ++rank)
    EXPECT_EQ(settle(comm(rank)), kGpuDone) << outcome.text;
}

void FakeGpuRanks::finalize(int rank) {
  use(rank);
  EXPECT_EQ(table.comm_finalize(comm(rank), &outcome), kGpuNotYet);
  EXPECT_EQ(settle(comm(rank)), kGpuDone) << outcome.text;
}

void FakeGpuRanks::end_comms() {
  for (int rank = 0; rank < size(); ++rank) finalize(rank);
  for (int rank = 0; rank < size(); ++rank) destroy(rank);
}

void FakeGpuRanks::abort(int rank) {
  use(rank);
  table.comm_abort(comm(rank));
}

void FakeGpuRanks::destroy(int rank) {
  use(rank);
  table.comm_destroy(comm(rank));
}

LockstepGpuResult FakeGpuRanks::settle(LockstepGpuComm* comm) {
  LockstepGpuResult result = kGpuNotYet;
  for (int i = 0; i < kManyLooks && result == kGpuNotYet; ++i)
    result = table.comm_state(comm, &outcome);
  return result;
}

LockstepGpuResult FakeGpuRanks::call(int rank, const LockstepGpuCall& call) {
  return call_on(stream(rank), rank, call);
}

LockstepGpuResult FakeGpuRanks::call_on(LockstepGpuStream* stream, int rank,
                                        const LockstepGpuCall& call) {
  use(rank);
  const LockstepGpuResult result =
      table.call(comm(rank), &call, stream, &outcome);
  return result == kGpuNotYet ? settle(comm(rank)) : result;
}

void FakeGpuRanks::begin_group() {
  EXPECT_EQ(table.group_begin(&outcome), kGpuDone);
}

LockstepGpuResult FakeGpuRanks::end_group() {
  LockstepGpuResult result = table.group_end(&outcome);
  if (result != kGpuNotYet) return result;
  for (LockstepGpuComm* comm : comms_) {
    if (comm != nullptr) result = settle(comm);
  }
  return result;
}

LockstepGpuEvent* FakeGpuRanks::new_event(int rank) {
  use(rank);
  LockstepGpuEvent* event = nullptr;
  EXPECT_EQ(table.event_create(&event, &outcome), kGpuDone);
  return event;
}

LockstepGpuEvent* FakeGpuRanks::record(LockstepGpuStream* stream, int rank) {
  LockstepGpuEvent* event = new_event(rank);
  EXPECT_EQ(table.event_record(event, stream, &outcome), kGpuDone);
  return event;
}

void FakeGpuRanks::wait(LockstepGpuStream* stream, LockstepGpuEvent* event) {
  EXPECT_EQ(table.stream_wait(stream, event, &outcome), kGpuDone);
}

void FakeGpuRanks::copy(void* to, const void* from, std::size_t bytes,
                        int rank) {
  EXPECT_EQ(table.copy(to, from, bytes, stream(rank), &outcome), kGpuDone);
}

bool FakeGpuRanks::happens(LockstepGpuEvent* event) {
  LockstepGpuResult result = kGpuNotYet;
  for (int i = 0; i < kManyLooks && result == kGpuNotYet; ++i)
    result = table.event_query(event, &outcome);
  return result == kGpuDone;
}

LockstepGpuCall float_call(LockstepGpuKind kind, const float* from, float* to,
                           std::size_t count) {
  return {.kind = kind,
          .sum = kGpuSum,
          .type = static_cast<std::int32_t>(DataType::kFloat32),
          .peer = 0,
          .from = from,
          .to = to,
          .count = count};
}

LockstepGpuCall float_sum(std::vector<float>& memory) {
  return float_call(kGpuAllReduce, memory.data(), memory.data(), memory.size());
}

LockstepGpuCall float_send(const std::vector<float>& memory, int peer) {
  LockstepGpuCall call =
      float_call(kGpuSend, memory.data(), nullptr, memory.size());
  call.peer = peer;
  return call;
}

LockstepGpuCall float_receive(std::vector<float>& memory, int peer) {
  LockstepGpuCall call =
      float_call(kGpuReceive, nullptr, memory.data(), memory.size());
  call.peer = peer;
  return call;
}

}  // namespace lockstep
