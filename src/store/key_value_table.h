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
#include <vector>

#include "lockstep/store/store.h"

namespace lockstep {

class KeyValueTable {
 public:
  void set(std::string_view key, std::span<const std::byte> value);

  // Null when `key` does not exist. Valid until the table changes.
  const Bytes* find(std::string_view key) const;

  // The values of `keys`; nothing when one does not exist. Valid until the
  // table changes. InvalidArgument when they exceed the limit of Store.
  template <class Keys>
  std::optional<std::vector<const Bytes*>> find_all(const Keys& keys) const {
    std::vector<const Bytes*> values;
    for (const std::string_view key : keys) {
      values.push_back(find(key));
      if (values.back() == nullptr) return std::nullopt;
    }
    check_size(values);
    return values;
  }

  // The value that Store::add would store at `key`; changes nothing.
  // InvalidArgument when the value is not a number or the sum exceeds 64 bits.
  std::int64_t sum(std::string_view key, std::int64_t amount) const;

  // Whether `key` holds `expected` (nothing: `key` does not exist).
  bool holds(std::string_view key,
             std::optional<std::span<const std::byte>> expected) const;

  // Returns whether `key` existed.
  bool erase(std::string_view key);

 private:
  static void check_size(std::span<const Bytes* const> values);

  std::map<std::string, Bytes, std::less<>> values_;
};

}  // namespace lockstep
