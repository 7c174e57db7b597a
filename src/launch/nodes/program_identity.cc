#include "src/launch/nodes/program_identity.h"

#include <fmt/format.h>

// The hash is compiled in: a program that links this library needs no xxHash.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "src/launch/worker/find_program.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostHashed = std::uintmax_t{1} << 30;
constexpr std::size_t kReadBytes = std::size_t{1} << 20;

bool is_of_the_system(const fs::path& file) {
  static constexpr std::array<std::string_view, 4> kFolders{"/usr/", "/bin/",
                                                            "/sbin/", "/lib"};
  const std::string name = file.native();
  return std::ranges::any_of(kFolders, [&](std::string_view folder) {
    return name.starts_with(folder) && !name.starts_with("/usr/local/");
  });
}

// The file behind links, if it is a regular one outside the system's folders.
std::optional<fs::path> own_file(const std::string& name) {
  std::error_code error;
  const fs::path file = fs::canonical(name, error);
  if (error || !fs::is_regular_file(file, error)) return std::nullopt;
  if (is_of_the_system(file)) return std::nullopt;
  return file;
}

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

std::string identity_of(const fs::path& file) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(file, error);
  if (error) return "";
  const std::string name = file.filename().string();
  if (bytes > kMostHashed) return fmt::format("{} ({} bytes)", name, bytes);
  const auto hash = hash_of(file);
  if (!hash) return "";
  return fmt::format("{} ({} bytes, hash {:016x})", name, bytes, *hash);
}

}  // namespace

std::string program_identity(std::span<const std::string> command,
                             std::string_view path) {
  if (command.empty()) return "";
  std::string first = command.front();
  try {
    first = find_program(first, path);
  } catch (const CannotExecute&) {
    // The launcher reports it when it starts the workers.
  }
  if (const auto file = own_file(first)) return identity_of(*file);
  for (const std::string& word : command.subspan(1)) {
    if (word == "-m" || word == "-c") return "";
    if (const auto file = own_file(word)) return identity_of(*file);
  }
  return "";
}

}  // namespace lockstep
