#include "src/store/key_value_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "lockstep/base/error.h"

namespace lockstep {

void KeyValueTable::set(std::string_view key,
                        std::span<const std::byte> value) {
  const auto found = values_.find(key);
  if (found != values_.end())
    found->second.assign(value.begin(), value.end());
  else
    values_.emplace(key, Bytes(value.begin(), value.end()));
}

const Bytes* KeyValueTable::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void KeyValueTable::check_size(std::span<const Bytes* const> values) {
  std::size_t bytes = 0;
  for (const Bytes* value : values) bytes += value->size();
  if (bytes > Store::kMaxValueBytes)
    throw InvalidArgument(
        fmt::format("multi_get: the values have {} bytes together; a call "
                    "returns at most {}",
                    bytes, Store::kMaxValueBytes));
}

std::int64_t KeyValueTable::sum(std::string_view key,
                                std::int64_t amount) const {
  const Bytes* value = find(key);
  if (value == nullptr) return amount;
  const std::string text = to_text(*value);
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end)
    throw InvalidArgument(
        fmt::format("add: the value of \"{}\" is \"{}\", which is not a number",
                    key, text.substr(0, 40)));
  std::int64_t result = 0;
  if (__builtin_add_overflow(number, amount, &result))
    throw InvalidArgument(
        fmt::format("add: \"{}\" holds {}; adding {} exceeds 64 bits", key,
                    number, amount));
  return result;
}

bool KeyValueTable::holds(
    std::string_view key,
    std::optional<std::span<const std::byte>> expected) const {
  const Bytes* value = find(key);
  if (value == nullptr || !expected) return value == nullptr && !expected;
  return std::ranges::equal(*value, *expected);
}

bool KeyValueTable::erase(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  values_.erase(found);
  return true;
}

}  // namespace lockstep
