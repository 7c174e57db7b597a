#include "apps/download/partial_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/printable.h"
#include "src/base/text_file.h"
#include "src/net/file_lock.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string_view next_step(int reason) {
  switch (reason) {
    case ENOSPC:
    case EDQUOT:
      return "free space there and repeat the command, which goes on from what "
             "is there, or name a folder on another disk with --data-dir";
    case EFBIG:
      return "raise the limit on the size of files (ulimit -f)";
    case EISDIR:
    case ELOOP:
    case ENXIO:
      return "move it away, or name another folder with --data-dir";
    default:
      return "name a folder that this user can write with --data-dir; lockstep "
             "train takes the same flag";
  }
}

std::string shown(const fs::path& path) { return printable(path.string()); }

Error cannot_write(const fs::path& path, int reason) {
  return Error(fmt::format("cannot write {}: {}\n  next:    {}", shown(path),
                           reason == ENXIO
                               ? "it is not a regular file"
                               : std::generic_category().message(reason),
                           next_step(reason)));
}

void sync_folder(const fs::path& path) {
  const FileDescriptor folder(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync a folder; the file itself is on the disk.
  if (folder) ::fsync(folder.get());
}

}  // namespace

PartialFile::PartialFile(fs::path target)
    : target_(std::move(target)), path_(target_.string() + ".part") {
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    open();
    if (lock()) return;
  }
  throw Error(fmt::format(
      "other processes replace {} again and again\n"
      "  next:    wait until they end, or name another folder with --data-dir",
      shown(path_)));
}

void PartialFile::fail(int reason) const { throw cannot_write(path_, reason); }

// Follows no link, since another user may have made it.
void PartialFile::open() {
  constexpr mode_t kMode = 0666;
  file_ = FileDescriptor(
      ::open(path_.c_str(),
             O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, kMode));
  if (!file_) fail(errno);
}

// Returns whether the file still has its name: another process may have
// finished or deleted it before this one had the lock.
bool PartialFile::lock() {
  if (try_to_lock(file_, shown(path_)) == LockAttempt::kInUse) {
    const auto holder = lock_holder(file_);
    throw Error(fmt::format(
        "{} is being written by {}\n"
        "  next:    wait until it ends, or name another folder with --data-dir",
        shown(path_),
        holder ? fmt::format("process {}", *holder) : "another process"));
  }
  struct stat held {
  }, named{};
  if (::fstat(file_.get(), &held) != 0) fail(errno);
  if (!S_ISREG(held.st_mode))
    throw Error(fmt::format("{} is not a regular file\n  next:    move it away",
                            shown(path_)));
  if (held.st_nlink > 1)  // writing would change another file, too
    throw Error(fmt::format("{} has another name\n  next:    move it away",
                            shown(path_)));
  size_ = static_cast<std::uint64_t>(held.st_size);
  return ::lstat(path_.c_str(), &named) == 0 && named.st_dev == held.st_dev &&
         named.st_ino == held.st_ino;
}

void PartialFile::append(std::span<const std::byte> bytes) {
  if (exceeds_file_size_limit(size_ + bytes.size())) fail(EFBIG);
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file_.get(), bytes.data(), bytes.size(),
                                   static_cast<off_t>(size_));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(errno);
    size_ += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void PartialFile::restart() {
  if (::ftruncate(file_.get(), 0) != 0) fail(errno);
  size_ = 0;
}

void PartialFile::finish() {
  // A file server may report only now that its disk is full.
  if (::fsync(file_.get()) != 0) fail(errno);
  if (::rename(path_.c_str(), target_.c_str()) != 0)
    throw cannot_write(target_, errno);
  file_.reset();
  sync_folder(target_.parent_path());
}

void PartialFile::remove() {
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) fail(errno);
}

void remove_part_of(const fs::path& target) {
  std::error_code ignored;
  if (!fs::is_regular_file(
          fs::symlink_status(target.string() + ".part", ignored)))
    return;
  try {
    PartialFile(target).remove();
  } catch (const Error&) {
    // It stays: another process writes it, or this user may not.
  }
}

void make_folder(const fs::path& path) {
  std::error_code refused;
  fs::create_directories(path, refused);
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return;
  std::string why = "there is a file of that name";
  if (fs::is_symlink(path, ignored))
    why = "there is a link of that name that leads to no folder";
  else if (refused && !fs::exists(path, ignored))
    why = refused.message();
  throw Error(fmt::format("cannot make the folder {}: {}\n  next:    {}",
                          shown(path), why, next_step(refused.value())));
}

}  // namespace lockstep
