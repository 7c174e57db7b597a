#include "src/comm/rendezvous/world.h"

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/comm/diagnosis/recorder.h"
#include "src/comm/diagnosis/watchdog.h"
#include "src/net/step_memory.h"

namespace lockstep {

namespace {

std::shared_ptr<Store> either(std::shared_ptr<Store> first,
                              const std::shared_ptr<Store>& second) {
  if (!first) return second;
  return first;
}

// Null where no launcher lists the job, or its file is gone: training does not
// depend on it.
std::unique_ptr<StepWriter> step_writer(const Settings& settings) {
  if (settings.steps_file.empty()) return nullptr;
  try {
    return std::make_unique<StepWriter>(settings.steps_file,
                                        settings.steps_slot);
  } catch (const Error& error) {
    log(LogLevel::kDebug, error.what());
    return nullptr;
  }
}

}  // namespace

World::World(std::shared_ptr<Store> store, Settings settings,
             std::shared_ptr<Store> whole_store)
    : store_(std::move(store)),
      whole_store_(either(std::move(whole_store), store_)),
      settings_(std::move(settings)),
      recorder_(std::make_shared<Recorder>(settings_.dump_directory,
                                           step_writer(settings_),
                                           settings_.fault_file)) {}

World::~World() = default;

void World::watch() {
  if (recorder_->world_size() == 1) return;
  MutexLock lock(mutex_);
  if (watchdog_) return;
  try {
    watchdog_ = make_unique_in_own_process<Watchdog>(
        recorder_, whole_store_,
        WatchdogOptions{.timeout = settings_.stall_warning});
  } catch (const std::exception& error) {
    // Out of threads or descriptors: the operation that needs them reports it
    // better.
    log(LogLevel::kDebug, error.what());
  }
}

std::string World::numbered(const std::string& name) {
  MutexLock lock(mutex_);
  return name + "#" + std::to_string(++counts_[name]);
}

std::string World::next_number(const std::string& name) {
  MutexLock lock(mutex_);
  return name + "#" + std::to_string(counts_[name] + 1);
}

}  // namespace lockstep
