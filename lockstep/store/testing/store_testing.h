// What the store's tests share: a child process, a count of file
// descriptors.
//
// Threads: one object, one thread at a time.
// Errors:  SystemError.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// A run of lockstep_store_child; killed, if it still runs, when the object
// goes.
class StoreChild {
 public:
  explicit StoreChild(std::vector<std::string> words);
  ~StoreChild();
  StoreChild(const StoreChild&) = delete;
  StoreChild& operator=(const StoreChild&) = delete;

  // SIGKILL, and waits for the end.
  void kill();

  // Waits for the end; the exit code, or minus the signal's number.
  int wait();

 private:
  int process_ = -1;
};

// Open file descriptors of this process.
int count_descriptors();

}  // namespace lockstep
