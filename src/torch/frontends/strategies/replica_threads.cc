#include "src/torch/frontends/strategies/replica_threads.h"

#include <c10/core/StreamGuard.h>

#include <exception>
#include <memory>
#include <string>

#include "lockstep/store/store.h"
#include "src/base/settings.h"
#include "src/comm/group/group_core.h"
#include "src/comm/rendezvous/world.h"
#include "src/faults/root_cause.h"
#include "src/torch/device/device_streams.h"
#include "src/torch/gradient/pass_errors.h"

namespace lockstep::strategies {
namespace {

// The settings without those that apply to this process and not to its threads:
// its rank and size, and the file in which it tells its launcher of a fault.
Settings settings_of_threads() {
  Settings settings = Settings::from_environment();
  static_cast<RankEnvironment&>(settings) = RankEnvironment();
  settings.fault_file.clear();
  return settings;
}

// Empty on CPUs.
std::optional<c10::Stream> stream_of_caller(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return current_stream_on(device);
}

}  // namespace

ReplicaThreads::ReplicaThreads(const std::vector<at::Device>& devices,
                               std::optional<std::chrono::nanoseconds> timeout)
    : threads_(static_cast<int>(devices.size())) {
  for (std::size_t i = 0; i < devices.size(); ++i)
    contexts_.push_back(
        {.local_replica = static_cast<int>(i), .device = devices[i]});
  const std::shared_ptr<Store> store = open_store("memory:");
  const Settings settings = settings_of_threads();
  const int count = static_cast<int>(devices.size());
  threads_.run(count, [&](int replica) {
    contexts_[static_cast<std::size_t>(replica)].group =
        make_group("shm", {.name = "replicas", .rank = replica, .size = count},
                   std::make_shared<World>(store, settings), timeout);
  });
}

// A rank that leaves a group of GPUs waits for all its ranks: see
// docs/design/nccl.md.
ReplicaThreads::~ReplicaThreads() {
  threads_.run(static_cast<int>(contexts_.size()), [&](int replica) {
    const auto& group = contexts_[static_cast<std::size_t>(replica)].group;
    if (group) group->leave();
  });
}

void ReplicaThreads::run(
    const std::function<void(const ReplicaContext&)>& body) {
  std::vector<std::optional<c10::Stream>> streams;
  for (const ReplicaContext& here : contexts_)
    streams.push_back(stream_of_caller(here.device));
  std::vector<std::exception_ptr> errors(contexts_.size());
  threads_.run(static_cast<int>(contexts_.size()), [&](int replica) {
    const auto index = static_cast<std::size_t>(replica);
    try {
      run_or_abort(contexts_[index], [&](const ReplicaContext& here) {
        const c10::OptionalStreamGuard guard(streams[index]);
        body(here);
      });
    } catch (...) {
      errors[index] = std::current_exception();
    }
  });
  if (const auto cause = root_cause(errors)) std::rethrow_exception(cause);
}

void run_or_abort(const ReplicaContext& here,
                  const std::function<void(const ReplicaContext&)>& body) {
  const auto abort = [&](const std::string& reason) {
    here.group->abort("replica " +
                      std::to_string(here.replica_id_in_sync_group()) + reason);
  };
  try {
    body(here);
  } catch (...) {
    abort(" failed: " + text_of_exception(std::current_exception()));
    throw;
  }
}

}  // namespace lockstep::strategies
