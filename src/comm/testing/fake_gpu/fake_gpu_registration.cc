// Memory that is registered with communicators of a fake GPU.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "src/comm/testing/fake_gpu/fake_gpu_state.h"

namespace lockstep {
namespace {

// A use of the whole registration that must come after all other uses.
MemoryUse all_of(const FakeRegistration& registered) {
  return {MemoryUse::Kind::kWrites, registered.memory, registered.bytes};
}

// The pending call of `operation` that uses registered memory, or null.
const FakeCall* pending_call(const FakeOperation& operation,
                             const FakeRegistration& registered) {
  for (const FakeCall& call : operation.calls) {
    if (call.done) continue;
    for (const MemoryUse& use : call.uses()) {
      if (use.overlaps(all_of(registered))) return &call;
    }
  }
  return nullptr;
}

}  // namespace

FakeOutcome FakeGpuState::register_memory(LockstepGpuComm* comm, void* memory,
                                          std::size_t bytes, void** handle) {
  *handle = nullptr;
  const auto its = comms_.find(comm);
  if (!its) return {kGpuMisuse, "the communicator has ended"};
  if (memory == nullptr || bytes == 0)
    return {kGpuMisuse, "there is no memory"};
  if (FakeOutcome ready = comms_.check_ready(*its); ready.result != kGpuDone)
    return ready;
  const FakeRegistration made{comm, memory, bytes};
  memory_.check_bounds(all_of(made), its->device, "a registration");
  for (const auto& [other_handle, other] : registrations_) {
    if (other->comm == comm && all_of(*other).overlaps(all_of(made)))
      memory_.complain(
          fmt::format("{} bytes are registered a second time", bytes));
  }
  memory_.forget_calls(memory, bytes);
  *handle = registrations_.add(std::make_shared<FakeRegistration>(made));
  return {};
}

// Registrations end when their communicator is freed.
void FakeGpuState::note_end(const FakeEnd& end) {
  thread().host->knows.join(end.knows);
  std::vector<void*> its;
  for (const auto& [handle, registered] : registrations_) {
    if (std::ranges::find(end.freed, registered->comm) != end.freed.end())
      its.push_back(handle);
  }
  for (void* handle : its) registrations_.take(handle);
}

void FakeGpuState::unregister_memory(LockstepGpuComm* handle, void* which) {
  if (which == nullptr) return;
  const auto registered = registrations_.take(which);
  const auto comm = comms_.find(handle);
  if (!registered || registered->comm != handle || !comm) {
    memory_.complain("memory is unregistered that is not registered");
    return;
  }
  if (comms_.check_ready(*comm).result == kGpuMisuse)
    memory_.complain("memory is unregistered before comm_state() says done");
  for (const auto& operation : comm->operations) {
    if (const FakeCall* call = pending_call(*operation, *registered))
      memory_.complain("memory is unregistered that " + *call->text +
                       " is still to use");
  }
  FakeHost& host = *thread().host;
  host.knows.tick(host.actor);
  memory_.end_calls(
      all_of(*registered),
      {host.actor, host.knows, std::make_shared<std::string>("unregistering")});
}

void FakeGpuState::check_unregistered(const MemoryUse& released) {
  for (const auto& [handle, registered] : registrations_) {
    if (all_of(*registered).overlaps(released))
      memory_.complain("memory is released that is still registered");
  }
}

}  // namespace lockstep
