#include "src/launch/nodes/program_identity.h"

#include <fmt/format.h>

// The hash is compiled in: a program that links this library needs no xxHash.
#define XXH_INLINE_ALL  // NOLINT(readability-identifier-naming): xxHash has it
#include <xxhash.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostHashed = std::uintmax_t{1} << 30;
constexpr std::size_t kReadBytes = std::size_t{1} << 20;

std::optional<std::uint64_t> hash_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(
      XXH3_createState(), &XXH3_freeState);
  if (!stream || !state) return std::nullopt;
  XXH3_64bits_reset(state.get());
  std::vector<char> piece(kReadBytes);
  while (stream) {
    stream.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    XXH3_64bits_update(state.get(), piece.data(),
                       static_cast<std::size_t>(stream.gcount()));
  }
  if (stream.bad()) return std::nullopt;
  return XXH3_64bits_digest(state.get());
}

}  // namespace

fs::path own_program(std::span<const std::string> command) {
  if (command.empty()) return {};
  fs::path first = command.front();
  const bool is_python = first.filename().string().starts_with("python");
  if (is_python && command.size() > 1) {
    const std::size_t at = command[1] == "-u" && command.size() > 2 ? 2 : 1;
    if (command[at].ends_with(".py")) return command[at];
  }
  if (is_python || command.front().find('/') == std::string::npos) return {};
  return first;
}

std::string identity_of(const fs::path& program) {
  std::error_code error;
  // Not a FIFO, which would block.
  if (!fs::is_regular_file(program, error)) return "";
  const std::uintmax_t bytes = fs::file_size(program, error);
  if (error) return "";
  if (bytes > kMostHashed) return fmt::format("{} bytes", bytes);
  const auto hash = hash_of(program);
  return hash ? fmt::format("{} bytes, hash {:016x}", bytes, *hash) : "";
}

}  // namespace lockstep
