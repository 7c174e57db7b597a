// The state that the groups of one job share in this process: the store in
// which they meet, their settings, the recorder of their operations and the
// watchdog.
//
// Threads: every method may be called from any thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/store/store.h"
#include "src/base/mutex.h"
#include "src/base/own_process.h"
#include "src/base/settings.h"

namespace lockstep {

class Recorder;
class Watchdog;

class World {
 public:
  // `whole_store` is the store that a launcher uses, if `store` is only a part
  // of it.
  World(std::shared_ptr<Store> store, Settings settings,
        std::shared_ptr<Store> whole_store = nullptr);
  // Ends the watchdog. Never waits for a peer.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const std::shared_ptr<Store>& store() const { return store_; }
  const Settings& settings() const { return settings_; }

  const std::shared_ptr<Recorder>& recorder() const { return recorder_; }

  // Starts the watchdog, unless it runs already or the world has one rank.
  void watch();

  // `name` with a number that counts the calls with this name: ranks that make
  // the same groups in the same order get the same names, regardless of other
  // groups in between.
  std::string numbered(const std::string& name);
  // The result of the next call of numbered().
  std::string next_number(const std::string& name);

 private:
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<Store> whole_store_;
  const Settings settings_;
  const std::shared_ptr<Recorder> recorder_;
  Mutex mutex_;
  std::map<std::string, int> counts_ LOCKSTEP_GUARDED_BY(mutex_);
  OwnProcessPointer<Watchdog> watchdog_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
