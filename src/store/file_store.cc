#include "src/store/file_store.h"

#include <fmt/format.h>
#include <sys/inotify.h>

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/base/mutex.h"
#include "src/base/own_process.h"
#include "src/net/wait.h"
#include "src/store/file_log.h"
#include "src/store/store_call.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// A destructor must end, even if a stopped process holds the lock.
constexpr auto kLongestFarewell = 5s;

// Distinguishes jobs without storing their secret (FNV-1a, 64 bits:
// http://www.isthe.com/chongo/tech/comp/fnv/).
std::uint64_t job_number(std::string_view token) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char character : token)
    hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3;
  return hash;
}

// Detects writes to a file. The kernel does not see writes of other hosts, and
// none when the user has used up the watches.
class FileWatch {
 public:
  explicit FileWatch(const std::string& path)
      : events_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    if (events_ &&
        ::inotify_add_watch(events_.get(), path.c_str(), IN_MODIFY) < 0)
      events_.reset();
  }

  // Readable once the file was written; negative when writes cannot be watched.
  int descriptor() const { return events_.get(); }

  void reset() {
    std::array<char, 4096> room;
    while (events_ && ::read(events_.get(), room.data(), room.size()) > 0)
      continue;
  }

 private:
  FileDescriptor events_;
};

class FileStore final : public Store {
 public:
  FileStore(const std::string& path, const StoreOptions& options);
  ~FileStore() override;

  void set(std::string_view key, std::span<const std::byte> value,
           Deadline deadline) override;
  Bytes get(std::string_view key, Deadline deadline,
            const Cancellation* cancellation) override;
  std::vector<Bytes> multi_get(std::span<const std::string> keys,
                               Deadline deadline,
                               const Cancellation* cancellation) override;
  std::size_t wait_any(std::span<const std::string> keys, Deadline deadline,
                       const Cancellation* cancellation) override;
  std::int64_t add(std::string_view key, std::int64_t amount,
                   Deadline deadline) override;
  Bytes compare_and_set(std::string_view key,
                        std::optional<std::span<const std::byte>> expected,
                        std::span<const std::byte> desired,
                        Deadline deadline) override;
  bool erase(std::string_view key, Deadline deadline) override;
  void set_last_will(const std::vector<std::string>& keys,
                     std::span<const std::byte> value,
                     Deadline deadline) override;
  void withdraw_last_will(Deadline deadline) override;

 private:
  using Access = FileLog::Access;

  // The first existing key of several.
  struct Found {
    std::size_t index;
    Bytes value;
  };

  // The limits of a call's wait.
  struct WaitLimits {
    Deadline deadline;
    const Cancellation* cancellation = nullptr;
  };

  // Runs `action` with the file locked and the table up to date.
  template <class Action>
  auto locked(Access access, const StoreCall& call, WaitLimits limits,
              Action action);
  // Waits until `look`, with the file locked for reading, returns something.
  template <class Look>
  auto wait(const StoreCall& call, WaitLimits limits, const Look& look);
  std::optional<Found> look(std::span<const std::string> keys) const;

  const StorePlace place_;

  // The file's lock excludes other processes, this mutex other threads. A
  // waiting call holds neither.
  Mutex mutex_;
  std::optional<FileLog> log_;
  std::optional<std::pair<std::vector<std::string>, Bytes>> will_;
};

template <class Action>
auto FileStore::locked(Access access, const StoreCall& call, WaitLimits limits,
                       Action action) {
  Backoff backoff(1ms, 50ms);
  while (true) {
    {
      const MutexLock own(mutex_);
      if (const auto lock = log_->try_lock(access)) {
        log_->catch_up();
        return action();
      }
    }
    call.check(backoff.wait(limits.deadline, limits.cancellation));
  }
}

FileStore::FileStore(const std::string& path, const StoreOptions& options)
    : place_{"file://" + path} {
  const StoreCall call("open_store", place_);
  const std::uint64_t job = job_number(options.token);
  Backoff backoff(1ms, 50ms);
  while (true) {
    if (!log_) log_.emplace(path);
    if (const auto lock = log_->try_lock(Access::kWrite)) {
      if (log_->join(job)) return;
    } else {
      call.check(backoff.wait(options.deadline));
      continue;
    }
    // Its last user has just deleted it.
    log_.reset();
  }
}

FileStore::~FileStore() {
  try {
    const StoreCall call("~Store", place_);
    locked(Access::kWrite, call, {kLongestFarewell}, [this] {
      if (will_)
        for (const std::string& key : will_->first)
          log_->set(key, will_->second);
      log_->leave();
    });
  } catch (const Error& error) {
    log(LogLevel::kWarn,
        fmt::format("leaving {} failed: {}", place_.url, error.what()));
  }
}

std::optional<FileStore::Found> FileStore::look(
    std::span<const std::string> keys) const {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Bytes* value = log_->table().find(keys[i]);
    if (value != nullptr) return Found{i, *value};
  }
  return std::nullopt;
}

template <class Look>
auto FileStore::wait(const StoreCall& call, WaitLimits limits,
                     const Look& look) {
  const auto look_now = [&] {
    return locked(Access::kRead, call, limits, look);
  };
  if (auto found = look_now()) return std::move(*found);
  FileWatch watch(log_->path());
  Backoff backoff(10ms, 200ms);
  while (true) {
    // Checks again, because the watch does not see earlier writes.
    if (auto found = look_now()) return std::move(*found);
    // Checked here too, because a file under constant writes is always ready.
    if (limits.cancellation != nullptr && limits.cancellation->cancelled())
      call.check(WaitResult::kCancelled);
    if (limits.deadline.expired()) call.check(WaitResult::kTimedOut);
    call.check(
        backoff.wait(limits.deadline, limits.cancellation, watch.descriptor()));
    watch.reset();
  }
}

void FileStore::set(std::string_view key, std::span<const std::byte> value,
                    Deadline deadline) {
  const StoreCall call("set", key, place_);
  call.check(value);
  locked(Access::kWrite, call, {deadline}, [&] { log_->set(key, value); });
}

Bytes FileStore::get(std::string_view key, Deadline deadline,
                     const Cancellation* cancellation) {
  const StoreCall call("get", key, place_);
  const std::array keys{std::string(key)};
  return wait(call, {deadline, cancellation}, [&] { return look(keys); }).value;
}

std::vector<Bytes> FileStore::multi_get(std::span<const std::string> keys,
                                        Deadline deadline,
                                        const Cancellation* cancellation) {
  const StoreCall call("multi_get", keys, place_);
  return wait(call, {deadline, cancellation},
              [&]() -> std::optional<std::vector<Bytes>> {
                const auto values = log_->table().find_all(keys);
                if (!values) return std::nullopt;
                std::vector<Bytes> copies;
                for (const Bytes* value : *values) copies.push_back(*value);
                return copies;
              });
}

std::size_t FileStore::wait_any(std::span<const std::string> keys,
                                Deadline deadline,
                                const Cancellation* cancellation) {
  const StoreCall call("wait_any", keys, place_);
  return wait(call, {deadline, cancellation}, [&] { return look(keys); }).index;
}

std::int64_t FileStore::add(std::string_view key, std::int64_t amount,
                            Deadline deadline) {
  const StoreCall call("add", key, place_);
  return locked(Access::kWrite, call, {deadline}, [&] {
    const std::int64_t sum = log_->table().sum(key, amount);
    log_->set(key, to_bytes(std::to_string(sum)));
    return sum;
  });
}

Bytes FileStore::compare_and_set(
    std::string_view key, std::optional<std::span<const std::byte>> expected,
    std::span<const std::byte> desired, Deadline deadline) {
  const StoreCall call("compare_and_set", key, place_);
  if (expected) call.check(*expected);
  call.check(desired);
  return locked(Access::kWrite, call, {deadline}, [&] {
    if (log_->table().holds(key, expected)) log_->set(key, desired);
    const Bytes* value = log_->table().find(key);
    return value == nullptr ? Bytes() : *value;
  });
}

bool FileStore::erase(std::string_view key, Deadline deadline) {
  const StoreCall call("erase", key, place_);
  return locked(Access::kWrite, call, {deadline},
                [&] { return log_->erase(key); });
}

void FileStore::set_last_will(const std::vector<std::string>& keys,
                              std::span<const std::byte> value, Deadline) {
  const StoreCall call("set_last_will", keys, place_);
  call.check(value);
  const MutexLock lock(mutex_);
  will_.emplace(keys, Bytes(value.begin(), value.end()));
}

void FileStore::withdraw_last_will(Deadline) {
  const MutexLock lock(mutex_);
  will_.reset();
}

}  // namespace

std::shared_ptr<Store> open_file_store(const std::string& path,
                                       const StoreOptions& options) {
  return make_shared_in_own_process<FileStore>(path, options);
}

}  // namespace lockstep
