#include "src/base/secret.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

void fill_randomly(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::getrandom(bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw SystemError("could not get random bytes", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

std::string random_hex(std::size_t bytes) {
  std::vector<std::byte> random(bytes);
  fill_randomly(random);
  std::string text;
  for (const std::byte byte : random)
    text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

bool equal_in_constant_time(std::span<const std::byte> a,
                            std::span<const std::byte> b) {
  LOCKSTEP_CHECK(a.size() == b.size(), "secrets of different lengths");
  // Volatile, because a compiler may otherwise stop at the first difference.
  volatile unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference = difference | std::to_integer<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace lockstep
