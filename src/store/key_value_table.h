// The keys and values of a store, in memory. Every kind of store uses it.
//
// Threads: one thread at a time per object.
// Errors:  InvalidArgument from add.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/store/store.h"

namespace lockstep {

class KeyValueTable {
 public:
  void set(std::string_view key, std::span<const std::byte> value);

  // Null when `key` does not exist. Valid until the table changes.
  const Bytes* find(std::string_view key) const;

  // The value that Store::add would store at `key`; changes nothing.
  // InvalidArgument when the value is not a number or the sum exceeds 64 bits.
  std::int64_t sum(std::string_view key, std::int64_t amount) const;

  // Whether `key` holds `expected` (nothing: `key` does not exist).
  bool holds(std::string_view key,
             std::optional<std::span<const std::byte>> expected) const;

  // Returns whether `key` existed.
  bool erase(std::string_view key);

 private:
  std::map<std::string, Bytes, std::less<>> values_;
};

}  // namespace lockstep
