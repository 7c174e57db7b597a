// Numbers, text and blobs as the bytes of a message or a file: little-endian,
// no padding, no alignment.
//
// Threads: one thread at a time per object.
// Errors:  none thrown; a ByteReader remembers that a read went past the end,
//          so a parser checks overrun() once, at its end.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep {

// Appends to `out`, which must outlive the writer.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}

  template <std::unsigned_integral Number>
  void number(Number value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
      out_.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
  void bytes(std::span<const std::byte> data) {
    out_.insert(out_.end(), data.begin(), data.end());
  }
  void text(std::string_view data) { bytes(std::as_bytes(std::span(data))); }

 private:
  std::vector<std::byte>& out_;
};

// Reads from the front of `data`, which must outlive the reader and its views.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> data) : rest_(data) {}

  // 0 when fewer bytes are left than the number needs.
  template <std::unsigned_integral Number>
  Number number() {
    Number value = 0;
    const auto data = bytes(sizeof value);
    for (std::size_t i = 0; i < data.size(); ++i)
      value = static_cast<Number>(value | std::to_integer<Number>(data[i])
                                              << (8 * i));
    return value;
  }

  // Empty when fewer than `count` bytes are left.
  std::span<const std::byte> bytes(std::size_t count) {
    if (count > rest_.size()) {
      overrun_ = true;
      rest_ = {};
      return {};
    }
    const auto front = rest_.first(count);
    rest_ = rest_.subspan(count);
    return front;
  }
  std::string_view text(std::size_t count) {
    const auto data = bytes(count);
    return {reinterpret_cast<const char*>(data.data()), data.size()};
  }

  // The remaining bytes.
  std::span<const std::byte> rest() { return bytes(rest_.size()); }

  // How many bytes remain.
  std::size_t left() const { return rest_.size(); }

  // Whether a read went past the end.
  bool overrun() const { return overrun_; }

 private:
  std::span<const std::byte> rest_;
  bool overrun_ = false;
};

}  // namespace lockstep
