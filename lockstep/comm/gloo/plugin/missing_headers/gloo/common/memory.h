// Stands in for the header of this name, which Debian's libgloo-dev lacks
// though its other headers include it.
//
// Only the names are needed, and the sizes: the classes that hold such pointers
// are made and destroyed inside the library, but something of ours lies behind
// them in memory. GlooPair::check_layout() holds the sizes against the library.
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
