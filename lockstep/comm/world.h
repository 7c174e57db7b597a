// What the groups of one job share in this process: the store in which they
// meet, the settings they were started with, the recorder of their operations
// and the watchdog over them.
//
// Threads: every method may be called from any thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/mutex.h"
#include "lockstep/base/own_process.h"
#include "lockstep/base/settings.h"
#include "lockstep/store/store.h"

namespace lockstep {

class Recorder;
class Watchdog;

class World {
 public:
  // `whole_store` is what a launcher knows of, where `store` is only a part of
  // it.
  World(std::shared_ptr<Store> store, Settings settings,
        std::shared_ptr<Store> whole_store = nullptr);
  // Ends the watchdog. Never waits for a peer.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const std::shared_ptr<Store>& store() const { return store_; }
  const Settings& settings() const { return settings_; }

  const std::shared_ptr<Recorder>& recorder() const { return recorder_; }

  // Lets the watchdog begin, unless it has or there are no other ranks.
  void watch();

  // `name` with a number that counts how often this process has asked for it:
  // ranks that make the same groups in the same order find the same names,
  // whatever other groups each of them makes in between.
  std::string numbered(const std::string& name);
  // What the next call of that returns.
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
