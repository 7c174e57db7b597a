// Pointers to objects that belong to one process and not to its forked
// children.
//
// A forked child has a copy of every object but none of its parent's threads,
// and shares the parent's descriptors and shared memory. A destructor that ran
// in the child as in the parent would wait for a thread that does not exist,
// stop the parent's threads through an eventfd, or tell peers in the parent's
// name that it has left. So a pointer of this header holds every object that
// has a thread, a peer or a server. In a forked child it never destroys the
// object.
//
// Threads: like std::shared_ptr and std::unique_ptr.
#pragma once

#include <unistd.h>

#include <memory>
#include <utility>

namespace lockstep {

class OwnProcess {
 public:
  // Whether this is the process in which the object was made.
  bool is_current() const { return ::getpid() == number_; }

 private:
  pid_t number_ = ::getpid();
};

// How many calls of fork() lie between the process that loaded this code and
// this one.
unsigned fork_depth() noexcept;

// The same for calls that take no longer than a question to the kernel.
class ForkCheck {
 public:
  // Whether fork() made this process from the one in which the object was made.
  bool is_child() const { return depth_ != fork_depth(); }

 private:
  unsigned depth_ = fork_depth();
};

template <class T>
class DeleteInOwnProcess {
 public:
  void operator()(T* object) const {
    if (process_.is_current()) delete object;
  }

 private:
  OwnProcess process_;
};

template <class T>
using OwnProcessPointer = std::unique_ptr<T, DeleteInOwnProcess<T>>;

template <class T, class... Arguments>
OwnProcessPointer<T> make_unique_in_own_process(Arguments&&... arguments) {
  return OwnProcessPointer<T>(new T(std::forward<Arguments>(arguments)...));
}

template <class T, class... Arguments>
std::shared_ptr<T> make_shared_in_own_process(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                            DeleteInOwnProcess<T>());
}

}  // namespace lockstep
