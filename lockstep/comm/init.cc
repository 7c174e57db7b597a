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

std::string choose_backend(const std::string& asked, const Settings& settings) {
  const std::string& name = asked == "auto" ? settings.backend : asked;
  // Shared memory is the only fast backend there is so far.
  return name == "auto" ? "shm" : name;
}

}  // namespace

std::shared_ptr<ProcessGroup> make_group(
    const std::string& backend, const GroupIdentity& identity,
    std::shared_ptr<World> world,
    std::optional<std::chrono::nanoseconds> timeout) {
  auto made = make_backend(choose_backend(backend, world->settings()), identity,
                           world->store(), world->settings());
  const auto chosen =
      timeout.value_or(std::chrono::duration_cast<std::chrono::nanoseconds>(
          world->settings().timeout));
  return std::make_shared<ProcessGroup>(std::move(made), identity, chosen,
                                        std::move(world));
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
  default_group_slot() = make_group(
      options.backend, {.rank = membership.rank, .size = membership.world_size},
      std::make_shared<World>(std::move(store), settings));
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

void destroy_process_group() {
  if (!default_group_slot()) return;
  default_group_slot()->leave();
  default_group_slot().reset();
}

}  // namespace lockstep
