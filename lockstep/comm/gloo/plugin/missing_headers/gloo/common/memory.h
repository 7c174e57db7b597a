// Stands in for the header of this name, which Debian's libgloo-dev lacks
// though its other headers include it.
//
// Only the names are needed: the classes that hold such pointers are made and
// destroyed inside the library, and nothing of ours lies behind them in memory.
#pragma once

namespace gloo {

template <class T>
class ShareableNonOwningPtr {};

template <class T>
class WeakNonOwningPtr {
 public:
  WeakNonOwningPtr() = default;
  explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T>& pointer);
};

template <class T>
class NonOwningPtr {};

}  // namespace gloo
