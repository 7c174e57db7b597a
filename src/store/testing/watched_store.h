// A store that notifies a test of each call, then forwards it to another store.
//
// Threads: like the other store, if `watch` allows that.
// Errors:  those of the other store and of `watch`.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "src/store/forwarding_store.h"

namespace lockstep {

class WatchedStore : public ForwardingStore {
 public:
  // Receives the method's name.
  using Watch = std::function<void(std::string_view method)>;

  WatchedStore(std::shared_ptr<Store> store, Watch watch)
      : ForwardingStore(std::move(store)), watch_(std::move(watch)) {}

 private:
  Store& target_of(std::string_view method) override {
    watch_(method);
    return target();
  }

  const Watch watch_;
};

}  // namespace lockstep
