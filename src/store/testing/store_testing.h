// Test fixtures of the store: a child process, a count of descriptors.
//
// Threads: one thread at a time per object.
// Errors:  SystemError.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// A run of lockstep_store_child. The destructor kills it if it still runs.
class StoreChild {
 public:
  explicit StoreChild(std::vector<std::string> words);
  ~StoreChild();
  StoreChild(const StoreChild&) = delete;
  StoreChild& operator=(const StoreChild&) = delete;

  // Sends SIGKILL and waits for the end.
  void kill();

  // Waits for the end; returns the exit code, or minus the signal's number.
  int wait();

 private:
  int process_ = -1;
};

// Open file descriptors of this process.
int count_descriptors();

}  // namespace lockstep
