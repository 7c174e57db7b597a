#include "src/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include "lockstep/base/error.h"
#include "src/base/replacing_file.h"
#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to_rename(const fs::path& from, const fs::path& to) {
  fail_to_write(to, "renaming \"" + from.string() + "\" failed");
}

// Where two names cannot be exchanged, the folder to replace is called like the
// new one, with this ending, until it is deleted.
constexpr const char* kAside = ".old.tmp";

// Syncs the folder of `path`, unless this process may write to it but not read
// it: no descriptor that can be synced is to be had then, and the file has its
// name already.
void sync_folder(const fs::path& path) {
  const FileDescriptor folder(
      ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder && errno == EACCES) return;
  if (!folder) fail_to_write(path, "its folder cannot be opened to sync it");
  // Some file systems cannot sync folders and return EINVAL.
  if (::fsync(folder.get()) != 0 && errno != EINVAL)
    fail_to_write(path, "syncing its folder to the disk failed");
}

// A file is lost with its folder if the folder is not on the disk.
void make_folders(const fs::path& folder) {
  if (folder.empty() || fs::is_directory(folder)) return;
  make_folders(folder.parent_path());
  if (fs::create_directory(folder)) sync_folder(folder);
}

}  // namespace

void replace_file(const fs::path& path,
                  const std::function<void(const ByteSink&)>& write,
                  const fs::path& like) {
  ReplacingFile file(path, like);
  write([&](std::span<const std::byte> bytes) { file.write(bytes); });
  // A rename may reach the disk before the bytes.
  file.sync();
  file.take_name();
  sync_folder(file_behind(path));
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
  if (fs::is_directory(to, ignored))  // a private one stays private
    fs::permissions(from, fs::status(to, ignored).permissions(), ignored);
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
  const fs::path folder = folder_of(file_behind(path));
  try {
    make_folders(folder);
  } catch (const fs::filesystem_error& error) {
    throw SystemError("cannot write \"" + path.string() + "\": its folder \"" +
                          folder.string() + "\" cannot be created",
                      error.code().value());
  }
  const ReplacingFile probe(path);
}

}  // namespace lockstep
