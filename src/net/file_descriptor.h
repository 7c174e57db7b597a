// Owns a file descriptor and closes it.
//
// Threads: one thread at a time per object.
#pragma once

#include <unistd.h>

#include <utility>

namespace lockstep {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  // Takes ownership of `number`; a negative number means no descriptor.
  explicit FileDescriptor(int number) : number_(number) {}
  ~FileDescriptor() { reset(); }
  FileDescriptor(FileDescriptor&& other) noexcept
      : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }

  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

  // Gives up ownership without closing the descriptor.
  int release() { return std::exchange(number_, -1); }

  void reset() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_ = -1;
};

}  // namespace lockstep
