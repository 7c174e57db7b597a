#include "src/store/testing/store_testing.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

StoreChild::StoreChild(std::vector<std::string> words) {
  words.insert(words.begin(), LOCKSTEP_STORE_CHILD);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const int status = ::posix_spawn(&process_, pointers[0], nullptr, nullptr,
                                   pointers.data(), environ);
  if (status != 0) throw SystemError("could not start " + words[0], status);
}

StoreChild::~StoreChild() {
  if (process_ > 0) kill();
}

void StoreChild::kill() {
  ::kill(process_, SIGKILL);
  wait();
}

int StoreChild::wait() {
  int status = 0;
  while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) continue;
  process_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int count_descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<int>(std::distance(begin(open), end(open)));
}

}  // namespace lockstep
