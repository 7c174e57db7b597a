#include "src/base/replacing_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& path, const std::string& why,
                         int reason) {
  throw SystemError("cannot write \"" + path.string() + "\": " + why, reason);
}

constexpr const char* kNameAnother =
    ", which the file would replace; name another file";

// A rename would replace /dev/null, or a pipe that a process reads, by a file.
void refuse_other_than_files(const fs::path& path) {
  std::error_code error;
  const fs::file_status there = fs::status(path, error);
  if (!fs::exists(there) || fs::is_regular_file(there)) return;
  if (fs::is_directory(there))
    throw SystemError("cannot write \"" + path.string() + "\"", EISDIR);
  refuse(path, std::string("it is a device, a pipe or a socket") + kNameAnother,
         EOPNOTSUPP);
}

// Whether the link is one of /proc/PID/fd, to which /dev/stdout leads: its text
// names the file that is open, perhaps for appending.
bool leads_to_open_file(const fs::path& link) {
  struct statfs system {};
  return ::statfs(folder_of(link).c_str(), &system) == 0 &&
         system.f_type == PROC_SUPER_MAGIC;
}

// Those of statx(2). A kernel that does not know one of them leaves it out.
std::uint64_t attributes_of(const fs::path& path) {
  struct statx status {};
  const int result = ::statx(AT_FDCWD, path.c_str(), 0, 0, &status);
  return result == 0 ? status.stx_attributes : 0;
}

// Linux's rule for folders such as /tmp: only the owner of a file or of the
// folder may take a file's name.
bool keeps_name(const fs::path& file) {
  struct stat folder {
  }, own{};
  if (::stat(folder_of(file).c_str(), &folder) != 0 ||
      ::stat(file.c_str(), &own) != 0)
    return false;
  const uid_t user = ::geteuid();
  return (folder.st_mode & S_ISVTX) != 0 && user != 0 && user != own.st_uid &&
         user != folder.st_uid;
}

// Linux's own rule for links (fs.protected_symlinks), which holds for open()
// but not for a rename to where a link leads.
bool may_follow(const fs::path& link) {
  struct stat folder {
  }, own{};
  if (::stat(folder_of(link).c_str(), &folder) != 0 ||
      ::lstat(link.c_str(), &own) != 0)
    return true;  // the next step names the reason
  const bool all_write =
      (folder.st_mode & S_ISVTX) != 0 && (folder.st_mode & S_IWOTH) != 0;
  return !all_write || own.st_uid == ::geteuid() || own.st_uid == folder.st_uid;
}

constexpr const char* kAccessList = "system.posix_acl_access";

// The file's POSIX ACL, as the kernel stores it; empty without one.
std::string access_list_of(const fs::path& path) {
  std::string list(std::size_t{64} << 10, '\0');  // the kernel's limit
  const ssize_t size =
      ::getxattr(path.c_str(), kAccessList, list.data(), list.size());
  list.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return list;
}

// Only root may give files to other users, and some file systems have neither
// users nor modes. In a file with an ACL the bits of the group are the most
// that the ACL may give, and not what the group may do.
void take_attributes(int file, const fs::path& from,
                     const struct stat& earlier) {
  mode_t mode = earlier.st_mode & 0777;
  const bool same_group =
      ::fchown(file, earlier.st_uid, earlier.st_gid) == 0 ||
      ::fchown(file, static_cast<uid_t>(-1), earlier.st_gid) == 0;
  const std::string list = access_list_of(from);
  if (!same_group || !list.empty()) mode &= ~S_IRWXG;
  if (!same_group) mode |= (mode & S_IRWXO) << 3;  // of another group
  ::fremovexattr(file, kAccessList);               // the folder's default
  ::fchmod(file, mode);
  if (same_group && !list.empty())
    ::fsetxattr(file, kAccessList, list.data(), list.size(), 0);
}

}  // namespace

void fail_to_write(const fs::path& path, const std::string& step) {
  const int reason = errno;
  throw SystemError("cannot write \"" + path.string() + "\": " + step, reason);
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

fs::path file_behind(const fs::path& path) {
  constexpr int kMostLinks = 40;  // as in Linux
  fs::path file = path;
  for (int links = 0; links < kMostLinks; ++links) {
    std::error_code error;
    const fs::path leads_to = fs::read_symlink(file, error);
    if (error) return file;  // not a link
    if (leads_to_open_file(file))
      refuse(path,
             std::string("it is an open file of a process") + kNameAnother,
             EOPNOTSUPP);
    if (!may_follow(file)) {
      errno = EACCES;
      fail_to_write(path, "it is another user's link");
    }
    file = folder_of(file) / leads_to;
  }
  errno = ELOOP;
  fail_to_write(path, "following its links failed");
}

// A rename needs no permission to write the earlier file, but its owner may
// have taken that away to protect the file: it is refused, as open() refuses
// it.
void check_replaceable(const fs::path& path) {
  refuse_other_than_files(path);
  const fs::path file = file_behind(path);
  if ((attributes_of(folder_of(file)) & STATX_ATTR_APPEND) != 0)
    refuse(path,
           "no file of its folder can be replaced, since that is "
           "append-only (lsattr)",
           EPERM);
  std::error_code unknown;  // open() names the reason
  if (!fs::exists(file, unknown)) return;
  if (::faccessat(AT_FDCWD, file.c_str(), W_OK, AT_EACCESS) != 0 &&
      errno != ENOENT)  // another process may have deleted it
    fail_to_write(path, "the file there may not be written");
  const std::uint64_t attributes = attributes_of(file);
  if ((attributes & STATX_ATTR_APPEND) != 0)
    refuse(path, "the file there is append-only (lsattr)", EPERM);
  if ((attributes & STATX_ATTR_MOUNT_ROOT) != 0)
    refuse(path,
           "a file is mounted there, which cannot be replaced; mount its "
           "folder instead, or write to another file",
           EBUSY);
  if (keeps_name(file))
    refuse(path,
           "the file there is another user's, in a folder where only "
           "owners may replace files (sticky bit)",
           EPERM);
}

ReplacingFile::ReplacingFile(const fs::path& path, const fs::path& like)
    : path_(path) {
  check_replaceable(path_);
  target_ = file_behind(path_);
  open(like);
}

void ReplacingFile::open(const fs::path& like) {
  struct stat earlier {};
  replaces_ = ::stat(target_.c_str(), &earlier) == 0;
  const bool exists = replaces_ || ::stat(like.c_str(), &earlier) == 0;
  const mode_t mode = exists ? 0600 : 0666;
  const std::string stem =
      (folder_of(target_) / ("." + target_.filename().string())).string() +
      "." + std::to_string(::getpid());
  for (int number = 0; file_ < 0; ++number) {
    name_ = stem + (number > 0 ? "-" + std::to_string(number) : "") + ".tmp";
    file_ =
        ::open(name_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode);
    if (file_ < 0 && errno != EEXIST)
      fail_to_write(path_, "no file can be created in \"" +
                               folder_of(target_).string() + "\"");
  }
  if (exists) take_attributes(file_, replaces_ ? target_ : like, earlier);
}

ReplacingFile::~ReplacingFile() {
  ::close(file_);
  if (!name_.empty()) ::unlink(name_.c_str());
}

void ReplacingFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      fail_to_write(path_,
                    "writing stopped after " + std::to_string(written_) +
                        " bytes" +
                        (replaces_ ? "; the earlier file is unchanged" : ""));
    written_ += static_cast<std::size_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void ReplacingFile::sync() {
  if (::fsync(file_) != 0) fail_to_write(path_, "syncing to the disk failed");
}

void ReplacingFile::take_name() {
  // The content may be the work of hours, and a user can still rename the file.
  const std::string whole = std::exchange(name_, {});
  if (::rename(whole.c_str(), target_.c_str()) != 0)
    fail_to_write(path_,
                  "the whole new content is in \"" + whole +
                      "\", which stays there since it cannot be renamed");
}

}  // namespace lockstep
