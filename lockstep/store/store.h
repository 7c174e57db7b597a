// The key-value store through which the ranks of a job find each other.
//
// Each rank publishes what its peers need (an address, a unique id) and waits
// for theirs. Values are small; bulk data never passes here.
//
// Threads: every method may be called from any thread.
// Errors:  Timeout when the deadline passes, Cancelled when the cancellation
//          is cancelled, NetworkError when the store cannot be reached. The
//          call may then still have taken effect, so repeating set() is safe
//          and repeating add() is not. InvalidArgument for keys and values
//          beyond the limits below. SystemError when a file:// store's file
//          cannot be used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/cancellation.h"
#include "lockstep/base/deadline.h"

namespace lockstep {

using Bytes = std::vector<std::byte>;

class Store {
 public:
  static constexpr std::size_t kMaxKeyBytes = 1024;
  static constexpr std::size_t kMaxValueBytes = std::size_t{16} << 20;

  virtual ~Store() = default;

  // Creates or replaces `key`.
  virtual void set(std::string_view key, std::span<const std::byte> value,
                   Deadline deadline) = 0;

  // The value of `key`, once it exists. `cancellation`, when given, must
  // outlive the call.
  virtual Bytes get(std::string_view key, Deadline deadline,
                    const Cancellation* cancellation = nullptr) = 0;

  // Waits until at least one of `keys` exists and returns the index of the
  // first that does. `keys` must not be empty, nor longer together than a
  // value may be.
  virtual std::size_t wait_any(std::span<const std::string> keys,
                               Deadline deadline,
                               const Cancellation* cancellation = nullptr) = 0;

  // Adds `amount` to the number at `key` (0 when absent; stored as decimal
  // text) and returns the sum, as one step. InvalidArgument when the value
  // there is no number.
  virtual std::int64_t add(std::string_view key, std::int64_t amount,
                           Deadline deadline) = 0;

  // Sets `key` to `desired` if it holds `expected` (nothing: if it does not
  // exist), as one step. Returns what the key holds afterwards: nothing when
  // it does not exist.
  virtual Bytes compare_and_set(
      std::string_view key, std::optional<std::span<const std::byte>> expected,
      std::span<const std::byte> desired, Deadline deadline) = 0;

  // Removes `key`; returns whether it existed.
  virtual bool erase(std::string_view key, Deadline deadline) = 0;

  // Leaves a will: `key` is set to `value` when this client goes without
  // withdrawing it, as when its process dies or its destructor runs. One will
  // a client; a new one replaces the old. Where deaths cannot be seen
  // (file://), it is only executed by the destructor.
  virtual void set_last_will(std::string_view key,
                             std::span<const std::byte> value,
                             Deadline deadline) = 0;
  virtual void withdraw_last_will(Deadline deadline) = 0;
};

struct StoreOptions {
  // The job's secret, of at most 256 bytes. A tcp:// server and its clients
  // prove to each other that they have it, and never send it.
  std::string token = {};
  // tcp://: serve at this address, as well as being a client of it.
  bool serve = false;
  // tcp://, with `serve`: listen at this address of the host alone; empty: at
  // all, whichever the url names.
  std::string bind = {};
  // tcp://: wait this long for the server to come up. file://: for the file.
  Deadline deadline = std::chrono::minutes(5);
};

// Opens the store at `url`:
//   tcp://host:port   a server reached over the network; with `serve`, this
//                     process is that server, which the others reach at
//                     `host`. Port 0 lets the kernel choose; see
//                     TcpStoreServer to learn which. An IPv6 number stands in
//                     brackets: tcp://[::1]:29500.
//   file:///path      a file that all ranks can reach on a shared file system;
//                     it must not exist from an earlier job, and is deleted
//                     when the last store that has it open is destroyed.
//   memory:           private to the returned object: ranks that are threads
//                     of one process share the pointer.
// Throws InvalidArgument for any other url.
std::shared_ptr<Store> open_store(const std::string& url,
                                  const StoreOptions& options = {});

// A view of `store` in which every key starts with `prefix`: lets groups share
// a store. Its last will is the underlying client's.
std::shared_ptr<Store> with_prefix(std::shared_ptr<Store> store,
                                   std::string prefix);

// Text as a store's value, and back.
Bytes to_bytes(std::string_view text);
std::string to_text(std::span<const std::byte> bytes);

}  // namespace lockstep
