#include "lockstep/comm/init.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/membership.h"
#include "lockstep/comm/registry.h"

namespace lockstep {
namespace {

// The default group is the one singleton: users of torch.distributed expect it.
std::shared_ptr<ProcessGroup>& default_group_slot() {
  static std::shared_ptr<ProcessGroup> slot;
  return slot;
}

std::string choose_backend(const InitOptions& options,
                           const Settings& settings) {
  const std::string& name =
      options.backend == "auto" ? settings.backend : options.backend;
  // Shared memory is the only fast backend there is so far.
  return name == "auto" ? "shm" : name;
}

}  // namespace

std::shared_ptr<ProcessGroup> make_group(const std::string& backend,
                                         const GroupIdentity& identity,
                                         std::shared_ptr<Store> store,
                                         const Settings& settings) {
  return std::make_shared<ProcessGroup>(
      make_backend(backend, identity, std::move(store), settings), identity,
      std::chrono::duration_cast<std::chrono::nanoseconds>(settings.timeout));
}

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options) {
  if (default_group_slot())
    throw InvalidArgument(
        "init_process_group: the default group exists already; call "
        "destroy_process_group() first");
  Settings settings = Settings::from_environment();
  set_log_level(settings.log_level);
  if (options.timeout) settings.timeout = *options.timeout;
  const Membership membership = resolve_membership(options, settings);
  auto store = open_store(membership.store_url,
                          {.token = settings.token,
                           .serve = membership.serves_store,
                           .deadline = settings.rendezvous_timeout});
  default_group_slot() =
      make_group(choose_backend(options, settings),
                 {.rank = membership.rank, .size = membership.world_size},
                 std::move(store), settings);
  return default_group_slot();
}

std::shared_ptr<ProcessGroup> default_group() {
  if (!default_group_slot())
    throw InvalidArgument(
        "there is no default group\n  next:    call init_process_group() "
        "first, or pass a group of your own");
  return default_group_slot();
}

bool is_initialized() { return default_group_slot() != nullptr; }

void destroy_process_group() { default_group_slot().reset(); }

}  // namespace lockstep
