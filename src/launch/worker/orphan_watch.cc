#include "src/launch/worker/orphan_watch.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep {
namespace {

// The parent of the process `name`, from /proc/PID/stat after the program's
// name, which may contain brackets and blanks; -1 if the process is gone.
pid_t parent_of(const std::string& name) {
  std::ifstream file("/proc/" + name + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t bracket = line.rfind(')');
  constexpr std::size_t kToParent = 4;  // ") S "
  if (bracket == std::string::npos || line.size() < bracket + kToParent)
    return -1;
  pid_t parent = -1;
  std::from_chars(line.data() + bracket + kToParent, line.data() + line.size(),
                  parent);
  return parent;
}

std::vector<pid_t> children() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"),
                                                   &::closedir);
  std::vector<pid_t> found;
  if (!folder) return found;
  const pid_t self = ::getpid();
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string name = entry->d_name;
    pid_t pid = 0;
    const auto [stop, error] =
        std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc() && *stop == '\0' && parent_of(name) == self)
      found.push_back(pid);
  }
  return found;
}

bool contains(std::span<const pid_t> pids, pid_t pid) {
  return std::find(pids.begin(), pids.end(), pid) != pids.end();
}

}  // namespace

OrphanWatch::OrphanWatch() : children_before_(children()) {
  ::prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

OrphanWatch::~OrphanWatch() { ::prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_); }

std::vector<pid_t> OrphanWatch::living(std::span<const pid_t> workers) const {
  // A process that ends during the scan of /proc may leave a child at a place
  // that was already read, so the scan repeats until no process has ended.
  for (;;) {
    std::vector<pid_t> orphans;
    bool one_ended = false;
    for (const pid_t pid : children()) {
      if (contains(workers, pid) || contains(children_before_, pid)) continue;
      if (::waitpid(pid, nullptr, WNOHANG) == 0)
        orphans.push_back(pid);
      else
        one_ended = true;
    }
    if (!one_ended) return orphans;
  }
}

}  // namespace lockstep
