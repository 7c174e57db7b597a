#include "src/store/file_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "src/net/byte_stream.h"
#include "src/net/frame.h"

namespace lockstep {
namespace {

constexpr std::string_view kName = "LKSFILE";
constexpr std::uint8_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 16;
constexpr std::size_t kMaxRecordBytes =
    Store::kMaxValueBytes + Store::kMaxKeyBytes + 16;
constexpr std::size_t kReadBytes = std::size_t{1} << 16;

// The bytes of the file that represent the two locks.
constexpr off_t kLogLock = 0;
constexpr off_t kPresenceLock = 1;

// open() follows no link and does not wait for the other end of a pipe.
constexpr int kOpenFlags =
    O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
constexpr mode_t kOwnerOnly = S_IRUSR | S_IWUSR;
constexpr mode_t kOthers = S_IRWXG | S_IRWXO;
constexpr mode_t kAllModes = 07777;

enum class RecordKind : std::uint8_t { kSet = 1, kErase = 2 };

struct flock lock_of(short type, off_t which) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = which;
  lock.l_len = 1;
  return lock;
}

Bytes make_header(std::uint64_t job) {
  Bytes header;
  ByteWriter writer(header);
  writer.text(kName);
  writer.number(kVersion);
  writer.number(job);
  return header;
}

Bytes make_record(RecordKind kind, std::string_view key,
                  std::span<const std::byte> value) {
  Bytes record;
  ByteWriter writer(record);
  writer.number(static_cast<std::uint8_t>(kind));
  writer.number(static_cast<std::uint16_t>(key.size()));
  writer.text(key);
  writer.bytes(value);
  return make_frame(record);
}

// The bytes from `offset` on, at most `room`.
std::size_t read_at(int file, std::span<std::byte> room, std::uint64_t offset,
                    const std::string& path) {
  while (true) {
    const auto count =
        ::pread(file, room.data(), room.size(), static_cast<off_t>(offset));
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno != EINTR)
      throw SystemError(fmt::format("could not read the store's file {}", path),
                        errno);
  }
}

}  // namespace

FileLog::Lock::~Lock() {
  if (file_ < 0) return;
  struct flock lock = lock_of(F_UNLCK, kLogLock);
  ::fcntl(file_, F_OFD_SETLK, &lock);
}

FileLog::FileLog(std::string path)
    : path_(std::move(path)),
      file_(::open(path_.c_str(), kOpenFlags, kOwnerOnly)) {
  if (!file_ && errno == ELOOP)
    throw InvalidArgument(
        fmt::format("the store's file {} is a link, which another user may "
                    "have made\n  next:    give the path that it leads to",
                    path_));
  if (!file_)
    throw SystemError(
        fmt::format("could not open the store's file {} (its folder must exist "
                    "and all ranks must be able to write there)",
                    path_),
        errno);
  check_owner();
}

// A process that can write to the file can join the job as any rank.
void FileLog::check_owner() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0)
    throw SystemError(fmt::format("could not examine {}", path_), errno);
  std::string fault;
  if (!S_ISREG(status.st_mode))
    fault = "is not a regular file";
  else if (status.st_uid != ::geteuid())
    fault = fmt::format("belongs to user {}; this process runs as user {}",
                        status.st_uid, ::geteuid());
  else if ((status.st_mode & kOthers) != 0)
    fault = fmt::format("may be used by other users (its mode is {:04o})",
                        status.st_mode & kAllModes);
  else if (status.st_nlink > 1)
    fault = "has a second name (a hard link)";
  if (fault.empty()) return;
  throw InvalidArgument(
      fmt::format("the store's file {} {}\n"
                  "  next:    choose a path where no file exists yet, in a "
                  "folder of your own, and start all ranks as one user",
                  path_, fault));
}

std::optional<FileLog::Lock> FileLog::try_lock(Access access) {
  struct flock lock =
      lock_of(access == Access::kRead ? F_RDLCK : F_WRLCK, kLogLock);
  if (::fcntl(file_.get(), F_OFD_SETLK, &lock) == 0) return Lock(file_.get());
  if (errno == EAGAIN || errno == EACCES || errno == EINTR) return std::nullopt;
  throw SystemError(
      fmt::format("could not lock the store's file {} (its file system must "
                  "support locks; a folder in /tmp does)",
                  path_),
      errno);
}

std::uint64_t FileLog::size() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0)
    throw SystemError(fmt::format("could not examine {}", path_), errno);
  if (status.st_nlink == 0)
    throw NetworkError(
        fmt::format("the store's file {} was deleted while it was in use\n"
                    "  next:    start the job again, and keep other programs "
                    "from deleting the file",
                    path_));
  return static_cast<std::uint64_t>(status.st_size);
}

bool FileLog::others_present() const {
  struct flock lock = lock_of(F_WRLCK, kPresenceLock);
  if (::fcntl(file_.get(), F_OFD_GETLK, &lock) != 0)
    throw SystemError(fmt::format("could not check the use of {}", path_),
                      errno);
  return lock.l_type != F_UNLCK;
}

bool FileLog::join(std::uint64_t job) {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0)
    throw SystemError(fmt::format("could not examine {}", path_), errno);
  if (status.st_nlink == 0) return false;
  if (status.st_size == 0)
    append(make_header(job));
  else
    check_header(job);
  end_ = kHeaderBytes;
  struct flock lock = lock_of(F_RDLCK, kPresenceLock);
  if (::fcntl(file_.get(), F_OFD_SETLK, &lock) != 0)
    throw SystemError(fmt::format("could not lock {}", path_), errno);
  return true;
}

void FileLog::check_header(std::uint64_t job) const {
  std::array<std::byte, kHeaderBytes> header{};
  const std::size_t count = read_at(file_.get(), header, 0, path_);
  ByteReader reader(std::span<const std::byte>(header).first(count));
  const bool ours = reader.text(kName.size()) == kName;
  const auto version = reader.number<std::uint8_t>();
  const auto owner = reader.number<std::uint64_t>();
  if (!ours || reader.overrun())
    throw InvalidArgument(
        fmt::format("{} exists and is not a store's file\n"
                    "  next:    choose a path where no file exists yet",
                    path_));
  if (version != kVersion)
    throw InvalidArgument(fmt::format(
        "the store's file {} has version {} of the format; this process writes "
        "version {}\n"
        "  next:    use the same version of Lockstep on every rank",
        path_, version, kVersion));
  if (owner != job || !others_present())
    throw InvalidArgument(fmt::format(
        "the store's file {} is left from an earlier job ({})\n"
        "  next:    delete it, or choose a path where no file exists yet",
        path_,
        owner != job ? "its job token was another one"
                     : "no process has it open"));
}

void FileLog::leave() {
  // Unlocks explicitly, because the file is closed only after the log's lock is
  // released: a process that leaves in between would still see this process.
  struct flock lock = lock_of(F_UNLCK, kPresenceLock);
  ::fcntl(file_.get(), F_OFD_SETLK, &lock);
  if (others_present()) return;
  struct stat ours {};
  struct stat there {};
  const bool same = ::fstat(file_.get(), &ours) == 0 &&
                    ::stat(path_.c_str(), &there) == 0 &&
                    ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
  if (same) ::unlink(path_.c_str());
}

void FileLog::catch_up() {
  const std::uint64_t size_now = size();
  std::array<std::byte, kReadBytes> room;
  FrameReader reader(kMaxRecordBytes);
  std::uint64_t offset = end_;
  try {
    while (offset < size_now) {
      const std::size_t count = read_at(file_.get(), room, offset, path_);
      if (count == 0) break;
      offset += count;
      reader.append(std::span(room).first(count));
      while (const auto record = reader.next_frame()) {
        apply(*record);
        end_ += kFrameHeaderBytes + record->size();
      }
    }
  } catch (const NetworkError& error) {
    throw InvalidArgument(
        fmt::format("the store's file {} is damaged at byte {}: {}\n"
                    "  next:    delete it and start the job again",
                    path_, end_, error.what()));
  }
}

void FileLog::apply(std::span<const std::byte> record) {
  ByteReader reader(record);
  const auto kind = static_cast<RecordKind>(reader.number<std::uint8_t>());
  const std::string_view key = reader.text(reader.number<std::uint16_t>());
  const auto value = reader.rest();
  if (reader.overrun()) throw NetworkError("a record is cut short");
  switch (kind) {
    case RecordKind::kSet:
      table_.set(key, value);
      return;
    case RecordKind::kErase:
      table_.erase(key);
      return;
  }
  throw NetworkError("a record of unknown kind");
}

void FileLog::set(std::string_view key, std::span<const std::byte> value) {
  append(make_record(RecordKind::kSet, key, value));
  table_.set(key, value);
}

bool FileLog::erase(std::string_view key) {
  if (table_.find(key) == nullptr) return false;
  append(make_record(RecordKind::kErase, key, {}));
  return table_.erase(key);
}

void FileLog::append(std::span<const std::byte> bytes) {
  // The bytes beyond are a partial record of a writer that died.
  if (::ftruncate(file_.get(), static_cast<off_t>(end_)) != 0)
    throw SystemError(fmt::format("could not write {}", path_), errno);
  std::size_t written = 0;
  while (written < bytes.size()) {
    const auto rest = bytes.subspan(written);
    const auto count = ::pwrite(file_.get(), rest.data(), rest.size(),
                                static_cast<off_t>(end_ + written));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error_number = errno;
      // If this fails too, the next writer does it.
      [[maybe_unused]] const int truncated =
          ::ftruncate(file_.get(), static_cast<off_t>(end_));
      throw SystemError(
          fmt::format("could not write the store's file {}", path_),
          error_number);
    }
    written += static_cast<std::size_t>(count);
  }
  end_ += bytes.size();
}

}  // namespace lockstep
