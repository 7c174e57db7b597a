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
//          beyond the limits below, and in a forked child, which opens the
//          store anew. SystemError when a file:// store's file
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

#include "lockstep/base/buffer.h"
#include "lockstep/base/deadline.h"

namespace lockstep {

class Store {
 public:
  static constexpr std::size_t kMaxKeyBytes = 1024;
  static constexpr std::size_t kMaxValueBytes = std::size_t{16} << 20;

  virtual ~Store() = default;

  // Creates or replaces `key`.
  virtual void set(std::string_view key, std::span<const std::byte> value,
                   Deadline deadline) = 0;

  // Waits until `key` exists and returns its value. `cancellation`, when given,
  // must outlive the call.
  virtual Bytes get(std::string_view key, Deadline deadline,
                    const Cancellation* cancellation = nullptr) = 0;

  // Waits until all of `keys` exist and returns their values, in the order of
  // `keys`. `keys` must not be empty; the keys together, and the values
  // together, must not exceed the limit of a value. (torch's multi_get.)
  virtual std::vector<Bytes> multi_get(
      std::span<const std::string> keys, Deadline deadline,
      const Cancellation* cancellation = nullptr) = 0;

  // Waits until at least one of `keys` exists and returns the index of the
  // first that does. `keys` must not be empty, and together must not exceed the
  // limit of a value.
  virtual std::size_t wait_any(std::span<const std::string> keys,
                               Deadline deadline,
                               const Cancellation* cancellation = nullptr) = 0;

  // Adds `amount` to the number at `key` (0 when absent; stored as decimal
  // text) and returns the sum, as one step. InvalidArgument when the value is
  // not a number.
  virtual std::int64_t add(std::string_view key, std::int64_t amount,
                           Deadline deadline) = 0;

  // Sets `key` to `desired` if it holds `expected` (nothing: if it does not
  // exist), as one step. Returns the key's value afterwards; nothing when it
  // does not exist.
  virtual Bytes compare_and_set(
      std::string_view key, std::optional<std::span<const std::byte>> expected,
      std::span<const std::byte> desired, Deadline deadline) = 0;

  // Removes `key`; returns whether it existed.
  virtual bool erase(std::string_view key, Deadline deadline) = 0;

  // Registers a last will: the store sets each of `keys` to `value`, as one
  // step, when this client ends without withdrawing it, because its process
  // dies or its destructor runs. A client has one will; a new one replaces the
  // old. Where the store cannot see deaths (file://), only the destructor
  // executes it.
  virtual void set_last_will(const std::vector<std::string>& keys,
                             std::span<const std::byte> value,
                             Deadline deadline) = 0;
  virtual void withdraw_last_will(Deadline deadline) = 0;
};

struct StoreOptions {
  // The job's secret, of at most 256 bytes. A tcp:// server and its clients
  // prove to each other that they have it, and never send it.
  std::string token = {};
  // tcp://: also serve at this address.
  bool serve = false;
  // tcp://, with `serve`: listen only at this address of the host; empty: at
  // all addresses, whichever the url names.
  std::string bind = {};
  // How long to wait for the server to start (tcp://) or for the file
  // (file://).
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

// A view of `store` in which every key starts with `prefix`, so groups can
// share a store. Its last will is the underlying client's.
std::shared_ptr<Store> with_prefix(std::shared_ptr<Store> store,
                                   std::string prefix);

// Converts text to a store's value, and back.
Bytes to_bytes(std::string_view text);
std::string to_text(std::span<const std::byte> bytes);

}  // namespace lockstep
