// One of our process groups as a benchmark's engine.
//
// Threads: one thread at a time.
// Errors:  those of ProcessGroup and Work::wait().
#pragma once

#include <memory>
#include <vector>

#include "apps/bench/bench_engine.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

class GroupEngine : public Engine {
 public:
  explicit GroupEngine(std::shared_ptr<ProcessGroup> group);
  // For buffers on `device`.
  GroupEngine(std::shared_ptr<ProcessGroup> group, Device device);

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes,
                                      Memory memory) override;
  void run(const CollectiveCall& call) override;
  void barrier() override { group_->barrier().wait(); }
  std::vector<double> gather(double value) override;

 protected:
  // A call in progress: one operation, or two for send_recv.
  struct Started {
    Work work;
    Work receive{};
  };
  Started start(const CollectiveCall& call);

  // Orders later calls in this stream of the device.
  void order_in(void* stream) { options_.stream = stream; }
  ProcessGroup& group() const { return *group_; }

 private:
  Started send_and_receive(const Buffer& input, const Buffer& output);

  const std::shared_ptr<ProcessGroup> group_;
  const Device device_;
  CallOptions options_;
};

}  // namespace lockstep
