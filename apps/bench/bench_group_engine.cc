#include "apps/bench/bench_group_engine.h"

#include <array>
#include <utility>

namespace lockstep {

GroupEngine::GroupEngine(std::shared_ptr<ProcessGroup> group)
    : GroupEngine(std::move(group), Device{}) {}

GroupEngine::GroupEngine(std::shared_ptr<ProcessGroup> group, Device device)
    : group_(std::move(group)), device_(device) {}

std::shared_ptr<std::byte> GroupEngine::allocate(std::size_t bytes,
                                                 Memory memory) {
  return memory == Memory::kShared ? group_->allocate(bytes)
                                   : allocate_plain(bytes);
}

void GroupEngine::run(const CollectiveCall& call) {
  const Started started = start(call);
  started.work.wait();
  started.receive.wait();
}

GroupEngine::Started GroupEngine::start(const CollectiveCall& call) {
  const BlockCounts blocks = block_counts(call.collective, rank(), size());
  const auto buffer = [&](std::byte* data, int count) {
    return Buffer{.data = data,
                  .count = static_cast<std::int64_t>(call.count) * count,
                  .type = call.type,
                  .device = device_};
  };
  const Buffer input = buffer(call.input, blocks.in);
  const Buffer output = buffer(call.output, blocks.out);
  constexpr int kRoot = 0;
  switch (call.collective) {
    case BenchCollective::kAllReduce:
      return {group_->all_reduce(output, call.op, options_)};
    case BenchCollective::kBroadcast:
      return {group_->broadcast(output, kRoot, options_)};
    case BenchCollective::kReduce:
      return {group_->reduce(output, call.op, kRoot, options_)};
    case BenchCollective::kAllGather:
      return {group_->all_gather(input, output, options_)};
    case BenchCollective::kGather:
      return {group_->gather(input, output, kRoot, options_)};
    case BenchCollective::kScatter:
      return {group_->scatter(input, output, kRoot, options_)};
    case BenchCollective::kReduceScatter:
      return {group_->reduce_scatter(input, output, call.op, options_)};
    case BenchCollective::kAllToAll:
      return {group_->all_to_all(input, output, options_)};
    case BenchCollective::kBarrier:
      return {group_->barrier(options_)};
    case BenchCollective::kSendRecv:
      return send_and_receive(input, output);
  }
  return {};
}

GroupEngine::Started GroupEngine::send_and_receive(const Buffer& input,
                                                   const Buffer& output) {
  const int next = (rank() + 1) % size();
  const int before = (rank() + size() - 1) % size();
  // One by one, without a batch's list of works.
  constexpr int kTag = 0;
  Work receive = group_->irecv(output, before, kTag, options_);
  return {group_->isend(input, next, kTag, options_), std::move(receive)};
}

std::vector<double> GroupEngine::gather(double value) {
  const std::vector<double> own{value};
  std::vector<double> all(static_cast<std::size_t>(size()));
  group_->all_gather(view(own), view(all)).wait();
  return all;
}

}  // namespace lockstep
