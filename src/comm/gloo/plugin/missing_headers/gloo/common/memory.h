// Replaces the header of this name, which Debian's libgloo-dev lacks although
// its other headers include it.
//
// Only the names and the sizes matter: the library makes and destroys the
// classes that hold such pointers, but our members follow them in memory.
// GlooPair::check_layout() compares the sizes with the library's.
#pragma once

#include <memory>

namespace gloo {

template <class T>
class ShareableNonOwningPtr {
  std::shared_ptr<T> pointer_;
};

template <class T>
class WeakNonOwningPtr {
 public:
  WeakNonOwningPtr() = default;
  explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T>& pointer);

 private:
  std::weak_ptr<T> pointer_;
};

template <class T>
class NonOwningPtr {
  std::shared_ptr<T> pointer_;
};

}  // namespace gloo
