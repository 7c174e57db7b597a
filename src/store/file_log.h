// The file of a file:// store: a log of sets and erasures, which every process
// that opens it replays. docs/formats/store.md describes its bytes.
//
// The kernel keeps two locks on the open file (F_OFD_SETLK; a process's death
// releases them, also on NFS). One guards reading and writing the log. Every
// process holds the other while it has the store open, so a newcomer sees
// whether the store is in use.
//
// Threads: one thread at a time per object.
// Errors:  SystemError when the file cannot be used; InvalidArgument when it is
//          not a store's, belongs to another job or user, or is damaged;
//          NetworkError when it was deleted.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "src/net/file_descriptor.h"
#include "src/store/key_value_table.h"

namespace lockstep {

class FileLog {
 public:
  enum class Access { kRead, kWrite };

  // Holds the log's lock from try_lock() on. Must not outlive the log.
  class Lock {
   public:
    explicit Lock(int file) : file_(file) {}
    ~Lock();
    Lock(Lock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
    Lock& operator=(Lock&&) = delete;

   private:
    int file_;
  };

  // Opens or creates the file; join() makes it a store. Only this user may have
  // access to the file, and `path` must not be a symbolic link.
  explicit FileLog(std::string path);

  const std::string& path() const { return path_; }

  // Returns nothing while another process holds the lock.
  std::optional<Lock> try_lock(Access access);

  // The methods below need the lock, for writing unless noted.

  // Joins the job with the number `job`. Returns false when the file was
  // deleted since it was opened, as the last process of an earlier job does;
  // the caller then opens it again.
  bool join(std::uint64_t job);

  // Deletes the file unless another store has it open.
  void leave();

  // Brings table() up to date. A lock for reading suffices.
  void catch_up();
  const KeyValueTable& table() const { return table_; }

  void set(std::string_view key, std::span<const std::byte> value);
  // Returns whether `key` existed.
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
