#include "lockstep/tools/bench_group_engine.h"

#include <array>
#include <utility>

namespace lockstep {

GroupEngine::GroupEngine(std::shared_ptr<ProcessGroup> group)
    : group_(std::move(group)) {}

std::shared_ptr<std::byte> GroupEngine::allocate(std::size_t bytes,
                                                 Memory memory) {
  return memory == Memory::kShared ? group_->allocate(bytes)
                                   : allocate_plain(bytes);
}

void GroupEngine::run(const CollectiveCall& call) { start(call).wait(); }

Work GroupEngine::start(const CollectiveCall& call) {
  const BlockCounts blocks = block_counts(call.collective, rank(), size());
  const auto buffer = [&](std::byte* data, int count) {
    return Buffer{.data = data,
                  .count = static_cast<std::int64_t>(call.count) * count,
                  .type = call.type};
  };
  const Buffer input = buffer(call.input, blocks.in);
  const Buffer output = buffer(call.output, blocks.out);
  constexpr int kRoot = 0;
  switch (call.collective) {
    case Collective::kAllReduce:
      return group_->all_reduce(output, call.op);
    case Collective::kBroadcast:
      return group_->broadcast(output, kRoot);
    case Collective::kReduce:
      return group_->reduce(output, call.op, kRoot);
    case Collective::kAllGather:
      return group_->all_gather(input, output);
    case Collective::kGather:
      return group_->gather(input, output, kRoot);
    case Collective::kScatter:
      return group_->scatter(input, output, kRoot);
    case Collective::kReduceScatter:
      return group_->reduce_scatter(input, output, call.op);
    case Collective::kAllToAll:
      return group_->all_to_all(input, output);
    case Collective::kBarrier:
      return group_->barrier();
    case Collective::kSendRecv:
      send_and_receive(input, output);
      return {};
  }
  return {};
}

void GroupEngine::send_and_receive(const Buffer& input, const Buffer& output) {
  const int next = (rank() + 1) % size();
  const int before = (rank() + size() - 1) % size();
  // One by one, without the list of works that a batch makes.
  const Work received = group_->irecv(output, before);
  group_->isend(input, next).wait();
  received.wait();
}

std::vector<double> GroupEngine::gather(double value) {
  const std::vector<double> own{value};
  std::vector<double> all(static_cast<std::size_t>(size()));
  group_->all_gather(view(own), view(all)).wait();
  return all;
}

}  // namespace lockstep
