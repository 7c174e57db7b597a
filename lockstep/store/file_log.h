// The file of a file:// store: a log of what was set and erased, which every
// process that opens it replays. docs/formats/store.md has its bytes.
//
// Two locks, kept by the kernel on the open file (F_OFD_SETLK: a process's
// death releases them, on NFS as well): one for reading and writing the log,
// one held for as long as the store is open, by which a new-comer sees whether
// anybody is still there.
//
// Threads: one object, one thread at a time.
// Errors:  SystemError when the file cannot be used; InvalidArgument when it is
//          no store's, another job's, another user's, or damaged; NetworkError
//          when it was deleted.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/net/file_descriptor.h"
#include "lockstep/store/key_value_table.h"

namespace lockstep {

class FileLog {
 public:
  enum class Access { kRead, kWrite };

  // Holds the file's lock from try_lock() on. Must not outlive the log.
  class Lock {
   public:
    explicit Lock(int file) : file_(file) {}
    ~Lock();
    Lock(Lock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
    Lock& operator=(Lock&&) = delete;

   private:
    int file_;
  };

  // Opens or creates the file; join() makes it a store. The file must be this
  // user's alone, and `path` no symbolic link.
  explicit FileLog(std::string path);

  const std::string& path() const { return path_; }

  // Nothing while another process holds the lock.
  std::optional<Lock> try_lock(Access access);

  // The rest needs the lock; for writing, unless it says otherwise.

  // Takes part in the job whose number is `job`. False when the file was
  // deleted since it was opened, as the last of an earlier job does: open anew.
  bool join(std::uint64_t job);

  // Deletes the file if no other store has it open.
  void leave();

  // Brings table() up to date. Reading access suffices.
  void catch_up();
  const KeyValueTable& table() const { return table_; }

  void set(std::string_view key, std::span<const std::byte> value);
  // Whether `key` existed.
  bool erase(std::string_view key);

 private:
  void check_owner() const;
  std::uint64_t size() const;
  bool others_present() const;
  void check_header(std::uint64_t job) const;
  void apply(std::span<const std::byte> record);
  void append(std::span<const std::byte> bytes);

  std::string path_;
  FileDescriptor file_;
  std::uint64_t end_ = 0;  // of the last record that was replayed
  KeyValueTable table_;
};

}  // namespace lockstep
