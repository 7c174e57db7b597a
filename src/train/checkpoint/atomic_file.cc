#include "src/train/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include "lockstep/base/error.h"
#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to_write(const fs::path& path, const std::string& step) {
  const int reason = errno;
  throw SystemError("cannot write \"" + path.string() + "\": " + step, reason);
}

[[noreturn]] void fail_to_rename(const fs::path& from, const fs::path& to) {
  fail_to_write(to, "renaming \"" + from.string() + "\" failed");
}

// Where two names cannot be exchanged, the folder to replace is called like the
// new one, with this ending, until it is deleted.
constexpr const char* kAside = ".old.tmp";

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// A rename would replace /dev/null, or a pipe that a process reads, by a file.
void refuse_other_than_files(const fs::path& path) {
  std::error_code error;
  const fs::file_status there = fs::status(path, error);
  if (!fs::exists(there) || fs::is_regular_file(there)) return;
  if (fs::is_directory(there))
    throw SystemError("cannot write \"" + path.string() + "\"", EISDIR);
  throw SystemError("cannot write \"" + path.string() +
                        "\": it is a device, a pipe or a socket, which the "
                        "file would replace; name another file",
                    EEXIST);
}

// An open file with a temporary name until keep() gives it the final one.
class TemporaryFile {
 public:
  explicit TemporaryFile(const fs::path& path) : path_(path) {
    refuse_other_than_files(path);
    const std::string stem =
        (folder_of(path) / ("." + path.filename().string())).string() + "." +
        std::to_string(::getpid()) + "-";
    for (int number = 0; !file_; ++number) {
      name_ = stem + std::to_string(number) + ".tmp";
      file_ = FileDescriptor(
          ::open(name_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666));
      if (!file_ && errno != EEXIST)
        fail_to_write(path, "no file can be created in \"" +
                                folder_of(path).string() + "\"");
    }
  }
  ~TemporaryFile() {
    if (!kept_) ::unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0)
        fail_to_write(path_, "writing stopped after " +
                                 std::to_string(written_) +
                                 " bytes; the earlier file is unchanged");
      written_ += static_cast<std::size_t>(count);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

  // Renames only after the sync: a rename may reach the disk before the bytes.
  void keep() {
    if (::fsync(file_.get()) != 0)
      fail_to_write(path_, "syncing to the disk failed");
    if (::rename(name_.c_str(), path_.c_str()) != 0)
      fail_to_rename(name_, path_);
    kept_ = true;
  }

 private:
  fs::path path_;
  std::string name_;
  FileDescriptor file_;
  std::size_t written_ = 0;
  bool kept_ = false;
};

// Syncs the folder of `path`.
void sync_folder(const fs::path& path) {
  const FileDescriptor folder(
      ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) fail_to_write(path, "its folder cannot be opened to sync it");
  // Some file systems cannot sync folders and return EINVAL.
  if (::fsync(folder.get()) != 0 && errno != EINVAL)
    fail_to_write(path, "syncing its folder to the disk failed");
}

// A file is lost with its folder if the folder is not on the disk.
void make_folders(const fs::path& folder) {
  if (folder.empty() || fs::is_directory(folder)) return;
  make_folders(folder.parent_path());
  if (!fs::create_directory(folder)) return;
  try {
    sync_folder(folder);
  } catch (const SystemError& error) {
    // A process with write but no read permission cannot sync the folder.
    if (error.error_number() != EACCES) throw;
  }
}

}  // namespace

void replace_file(const fs::path& path,
                  const std::function<void(const ByteSink&)>& write) {
  TemporaryFile file(path);
  write([&](std::span<const std::byte> bytes) { file.write(bytes); });
  file.keep();
  sync_folder(path);
}

void replace_file(const fs::path& path,
                  std::span<const std::span<const std::byte>> pieces) {
  replace_file(path, [&](const ByteSink& sink) {
    for (const auto piece : pieces) sink(piece);
  });
}

void replace_folder(const fs::path& from, const fs::path& to,
                    const ExchangeNames& exchange) {
  sync_folder(from / ".");
  std::error_code ignored;
  // A rename replaces an empty folder, but no other.
  if (::rename(from.c_str(), to.c_str()) == 0) return sync_folder(to);
  if (errno != EEXIST && errno != ENOTEMPTY) fail_to_rename(from, to);
  if (exchange(from, to) == 0) {
    sync_folder(to);
    fs::remove_all(from, ignored);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
    fail_to_rename(from, to);
  fs::path aside = from;
  aside += kAside;
  if (::rename(to.c_str(), aside.c_str()) != 0) fail_to_rename(to, aside);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int reason = errno;
    ::rename(aside.c_str(), to.c_str());
    errno = reason;
    fail_to_rename(from, to);
  }
  sync_folder(to);
  fs::remove_all(aside, ignored);
}

void replace_folder(const fs::path& from, const fs::path& to) {
  replace_folder(from, to, [](const fs::path& one, const fs::path& other) {
    return ::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(),
                       RENAME_EXCHANGE);
  });
}

void prepare_to_replace(const fs::path& path) {
  const fs::path folder = folder_of(path);
  try {
    make_folders(folder);
  } catch (const fs::filesystem_error& error) {
    throw SystemError("cannot write \"" + path.string() + "\": its folder \"" +
                          folder.string() + "\" cannot be created",
                      error.code().value());
  }
  const TemporaryFile probe(path);
}

}  // namespace lockstep
