// Opaque handles of a library: they point to no object, and no two are ever the
// same, so that an ended handle is recognised.
//
// Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace lockstep {

// Maps `Handle*`, as users see them, to `Thing`s.
template <typename Handle, typename Thing>
class FakeHandles {
 public:
  Handle* add(std::shared_ptr<Thing> thing) {
    // Low addresses, which no program maps.
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    auto* handle = reinterpret_cast<Handle*>(std::uintptr_t{16} * ++last_);
    things_.emplace(handle, std::move(thing));
    return handle;
  }
  // Null if it has ended or never existed.
  std::shared_ptr<Thing> find(Handle* handle) const {
    const auto found = things_.find(handle);
    return found == things_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Thing> take(Handle* handle) {
    auto thing = find(handle);
    things_.erase(handle);
    return thing;
  }
  std::size_t size() const { return things_.size(); }
  auto begin() const { return things_.begin(); }
  auto end() const { return things_.end(); }

 private:
  std::map<Handle*, std::shared_ptr<Thing>> things_;
  std::uintptr_t last_ = 0;
};

}  // namespace lockstep
