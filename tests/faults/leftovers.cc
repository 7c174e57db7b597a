#include "leftovers.h"

#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "lockstep/base/error.h"
#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

void write_line(const char* file, const std::string& line) {
  std::ofstream(file) << line << std::flush;
}

// As root, or as root of a user namespace.
bool unshare_all() {
  constexpr int kSpaces = CLONE_NEWNET | CLONE_NEWNS;
  if (::unshare(kSpaces) == 0) return true;
  const auto user = std::to_string(::getuid());
  const auto group = std::to_string(::getgid());
  if (::unshare(kSpaces | CLONE_NEWUSER) != 0) return false;
  write_line("/proc/self/setgroups", "deny");
  write_line("/proc/self/uid_map", "0 " + user + " 1");
  write_line("/proc/self/gid_map", "0 " + group + " 1");
  return true;
}

bool raise_loopback() {
  const FileDescriptor any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP;
  return ::ioctl(any.get(), SIOCSIFFLAGS, &request) == 0;
}

std::string refusal(const char* what) {
  return std::string(what) + ": " + std::strerror(errno);
}

std::string names_in(const fs::path& folder) {
  std::string names;
  for (const auto& entry : fs::directory_iterator(folder))
    names += " " + entry.path().string();
  return names;
}

// Local addresses of listening sockets, in the kernel's format.
std::string listening_in(const char* table) {
  constexpr const char* kListening = "0A";
  std::ifstream lines(table);
  std::string line;
  std::getline(lines, line);  // the head
  std::string found;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state;
    fields >> number >> local >> remote >> state;
    if (state == kListening) found += " " + local;
  }
  return found;
}

std::string named_unix_sockets() {
  std::ifstream lines("/proc/net/unix");
  std::string found;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t name = line.find(" @");
    if (name != std::string::npos) found += line.substr(name);
  }
  return found;
}

std::string noted(const char* what, const std::string& found) {
  return found.empty() ? "" : std::string(what) + found + "; ";
}

// Children of this process, including adopted ones.
std::string children() {
  std::string found;
  for (pid_t pid = 0; (pid = ::waitpid(-1, nullptr, WNOHANG)) >= 0;) {
    found += pid == 0 ? " one that lives" : " " + std::to_string(pid);
    if (pid == 0) break;
  }
  return found;
}

}  // namespace

std::string isolate() {
  if (!unshare_all()) return refusal("no namespaces of our own");
  // First, because ranks must be able to reach each other even if the rest
  // fails.
  if (!raise_loopback()) return refusal("loopback cannot be brought up");
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return refusal("mounts cannot be made private");
  if (::mount("faults", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, nullptr) !=
      0)
    return refusal("no /dev/shm of our own");
  return "";
}

Leftovers::Leftovers(Scope scope) : scope_(scope) {
  // Orphans of a dead rank become our children.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::string name = fs::temp_directory_path() / "lockstep-faults-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr)
    throw SystemError("cannot make a temporary folder", errno);
  folder_ = name;
  ::setenv("TMPDIR", folder_.c_str(), 1);
  earlier_ = OwnResources::count();
}

Leftovers::~Leftovers() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

std::string Leftovers::look() const {
  std::string found =
      noted("processes", children()) + noted("files", names_in(folder_)) +
      noted("of ours", OwnResources::count().more_than(earlier_));
  if (scope_ == Scope::kOwn) return found;
  return found + noted("files", names_in("/dev/shm")) +
         noted("ports",
               listening_in("/proc/net/tcp") + listening_in("/proc/net/tcp6")) +
         noted("sockets", named_unix_sockets());
}

}  // namespace lockstep
