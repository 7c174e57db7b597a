#include "lockstep/comm/testing/run_ranks.h"

#include <exception>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

bool is_peer_failure(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerFailure&) {
    return true;
  } catch (...) {
    return false;
  }
}

// Finds the plug-ins of this build, and makes two hosts of several ranks.
Settings settings_of_test(int rank, int ranks) {
  Settings settings;
  settings.plugin_path = LOCKSTEP_TEST_PLUGINS;
  settings.host_id = rank < (ranks + 1) / 2 ? "host a" : "host b";
  return settings;
}

}  // namespace

void run_ranks(const std::string& backend, int ranks,
               const std::function<void(std::shared_ptr<ProcessGroup>)>& body) {
  const auto store = open_store("memory:");
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      std::shared_ptr<ProcessGroup> group;
      try {
        group = make_group(
            backend, {.name = "test", .rank = rank, .size = ranks},
            std::make_shared<World>(store, settings_of_test(rank, ranks)));
        body(group);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
        if (group) group->abort(error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::exception_ptr first;
  for (const auto& error : errors)
    if (error &&
        (!first || (is_peer_failure(first) && !is_peer_failure(error))))
      first = error;
  if (first) std::rethrow_exception(first);
}

}  // namespace lockstep
