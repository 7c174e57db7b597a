#include "src/net/parents_sockets.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

namespace lockstep {
namespace {

// Identifies a socket independently of its descriptor.
std::optional<ino_t> inode_of(int descriptor) {
  struct stat what {};
  if (::fstat(descriptor, &what) != 0 || !S_ISSOCK(what.st_mode))
    return std::nullopt;
  return what.st_ino;
}

// The same, read from a link of /proc/self/fd, "socket:[INODE]". Another thread
// may close the descriptor meanwhile, and fstat() would be a data race.
std::optional<ino_t> inode_behind(const std::filesystem::path& link) {
  constexpr std::string_view kStart = "socket:[";
  std::error_code closed;
  const auto target = std::filesystem::read_symlink(link, closed).string();
  ino_t inode = 0;
  if (closed || !target.starts_with(kStart)) return std::nullopt;
  std::from_chars(target.data() + kStart.size(), target.data() + target.size(),
                  inode);
  return inode;
}

class ParentsSockets {
 public:
  static ParentsSockets& of_process() {
    static ParentsSockets& sockets = *new ParentsSockets;
    return sockets;
  }

  FileDescriptor add(const std::function<FileDescriptor()>& open) {
    const std::lock_guard lock(mutex_);
    FileDescriptor socket = open();
    if (socket) add(socket.get());
    return socket;
  }

 private:
  // The kernel's layout.
  struct Entry {
    std::uint64_t inode;
    std::int64_t next;
    std::uint16_t bytes;
    std::uint8_t type;
  };
  static constexpr std::size_t kNameAt = 19;  // bytes after its start

  ParentsSockets() {
    ::pthread_atfork([] { of_process().mutex_.lock(); },
                     [] { of_process().mutex_.unlock(); },
                     [] { of_process().be_forked(); });
  }

  void add(int socket) noexcept try {
    const auto inode = inode_of(socket);
    if (!inode) return;
    if (inodes_.size() >= most_) forget_closed();
    const auto place = std::ranges::lower_bound(inodes_, *inode);
    if (place == inodes_.end() || *place != *inode)
      inodes_.insert(place, *inode);
  } catch (const std::exception&) {
    return;
  }

  bool knows(ino_t inode) const {
    return std::ranges::binary_search(inodes_, inode);
  }

  bool has(int descriptor) const {
    const auto inode = inode_of(descriptor);
    return inode && knows(*inode);
  }

  // Keeps those that this process still has open.
  void forget_closed() {
    std::vector<ino_t> open;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd"))
      if (const auto inode = inode_behind(entry); inode && knows(*inode))
        open.push_back(*inode);
    std::ranges::sort(open);
    open.erase(std::unique(open.begin(), open.end()), open.end());
    inodes_ = std::move(open);
    most_ = std::max<std::size_t>(kFew, 2 * inodes_.size());
  }

  // Only system calls, because other threads of the parent may have held any
  // lock.
  void be_forked() {
    if (!inodes_.empty()) replace_all();
    mutex_.unlock();
  }

  void replace_all() {
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    const int folder =
        ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    alignas(Entry) std::array<char, 4096> entries;
    for (long size = 1; size > 0;) {
      size = ::syscall(SYS_getdents64, folder, entries.data(), entries.size());
      for (long at = 0; at < size;) {
        const char* const start = entries.data() + at;
        Entry entry;
        std::memcpy(&entry, start, sizeof entry);
        replace(number_from(start + kNameAt), nothing);
        at += entry.bytes;
      }
    }
    if (folder >= 0) ::close(folder);
    if (nothing >= 0) ::close(nothing);
  }

  // -1 for "." and "..".
  static int number_from(const char* name) {
    int number = 0;
    for (; *name != '\0'; ++name) {
      if (*name < '0' || *name > '9') return -1;
      number = 10 * number + (*name - '0');
    }
    return number;
  }

  void replace(int descriptor, int nothing) const {
    if (descriptor < 0 || !has(descriptor)) return;
    if (nothing >= 0)
      ::dup3(nothing, descriptor, O_CLOEXEC);
    else
      ::close(descriptor);
  }

  static constexpr std::size_t kFew = 256;

  std::mutex mutex_;
  std::vector<ino_t> inodes_;  // sorted
  std::size_t most_ = kFew;
};

// Made as the code is loaded: a fork() that is past its prepare handlers when
// the first socket opens would not run these.
[[maybe_unused]] const ParentsSockets& kForksAreSeen =
    ParentsSockets::of_process();

}  // namespace

FileDescriptor keep_from_children(const std::function<FileDescriptor()>& open) {
  return ParentsSockets::of_process().add(open);
}

}  // namespace lockstep
