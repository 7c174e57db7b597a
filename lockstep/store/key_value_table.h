// The keys and values of a store, in memory: what every store is in the end.
//
// Threads: one object, one thread at a time.
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

  // Null when `key` does not exist. Valid until the table is changed.
  const Bytes* find(std::string_view key) const;

  // What Store::add would store at `key`; changes nothing. InvalidArgument when
  // the value is no number or the sum has no place in 64 bits.
  std::int64_t sum(std::string_view key, std::int64_t amount) const;

  // Whether `key` holds `expected` (nothing: does not exist).
  bool holds(std::string_view key,
             std::optional<std::span<const std::byte>> expected) const;

  // Whether `key` existed.
  bool erase(std::string_view key);

 private:
  std::map<std::string, Bytes, std::less<>> values_;
};

}  // namespace lockstep
