// The methods of a fake GPU that tests call: uses by the host, counts, faults.
#include <algorithm>

#include "src/comm/testing/fake_gpu/fake_gpu_state.h"

namespace lockstep {
namespace {

bool conflicts(const std::vector<MemoryUse>& uses, const MemoryUse& use) {
  return std::any_of(uses.begin(), uses.end(), [&](const MemoryUse& it) {
    return it.conflicts_with(use);
  });
}

// The pending call of `operation` that conflicts with `use`, or null.
const FakeCall* pending_call(const FakeOperation& operation,
                             const MemoryUse& use) {
  for (const FakeCall& call : operation.calls) {
    if (!call.done && conflicts(call.uses(), use)) return &call;
  }
  return nullptr;
}

}  // namespace

void FakeGpuState::host_uses(const MemoryUse& use) {
  FakeHost& host = *thread().host;
  host.knows.tick(host.actor);
  memory_.check_bounds(use, -1, "the host");
  memory_.use(
      use, {host.actor, host.knows, std::make_shared<std::string>("the host")});
  // Pending tasks cannot be ordered before it.
  const auto complain = [&](const std::string& text) {
    memory_.complain("the host uses memory that " + text + " is still to use");
  };
  const auto look_at = [&](const FakeOperation& operation) {
    if (const FakeCall* call = pending_call(operation, use))
      complain(*call->text);
  };
  std::set<const FakeOperation*> seen;  // an operation may be in several
  streams_.for_each_task([&](const FakeTask& task) {
    if (conflicts(task.uses(), use)) complain(*task.text);
    if (task.operation && seen.insert(task.operation.get()).second)
      look_at(*task.operation);
  });
  comms_.for_each_launching(look_at);
}

void FakeGpuState::hear_from_all_threads() {
  FakeHost& host = *thread().host;
  for (const auto& other : hosts_) host.knows.join(other->knows);
}

void FakeGpuState::fail_device(int device, const std::string& text) {
  broken_devices_[device] = text;
}

FakeGpu::Alive FakeGpuState::alive() const {
  return {.streams = streams_.alive(),
          .events = events_.size(),
          .comms = comms_.alive(),
          .allocations = memory_.allocations(),
          .registrations = registrations_.size()};
}

}  // namespace lockstep
