#include "src/base/text_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/replacing_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Streams do not guarantee errno, but nothing else tells the reason.
[[noreturn]] void fail_to_read(const fs::path& path) {
  const int reason = errno != 0 ? errno : EIO;
  throw SystemError(fmt::format("cannot read {}", path.string()), reason);
}

}  // namespace

bool exceeds_file_size_limit(std::uint64_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur;
}

void replace_text_file(const fs::path& path, std::string_view text,
                       const fs::path& like) {
  if (exceeds_file_size_limit(text.size()))
    throw SystemError(
        fmt::format("cannot write {} (see `ulimit -f`)", path.string()), EFBIG);
  ReplacingFile file(path, like);
  file.write(std::as_bytes(std::span(text)));
  file.take_name();
}

std::string read_text_file(const fs::path& path, std::size_t most_bytes) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_to_read(path);
  std::string text;
  std::array<char, 1 << 16> piece;
  while (file.read(piece.data(), piece.size()), file.gcount() > 0) {
    text.append(piece.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > most_bytes)
      throw InvalidArgument(
          fmt::format("{} is larger than {} bytes", path.string(), most_bytes));
  }
  if (file.bad()) fail_to_read(path);
  return text;
}

std::string read_regular_file(const fs::path& path, std::size_t most_bytes) {
  std::string text(most_bytes, '\0');
  const int file =
      ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return {};
  struct stat status {};
  std::size_t size = 0;
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
      std::cmp_less_equal(status.st_size, most_bytes))
    while (size < text.size()) {
      const ssize_t count =
          ::pread(file, text.data() + size, text.size() - size,
                  static_cast<off_t>(size));
      if (count <= 0) break;
      size += static_cast<std::size_t>(count);
    }
  ::close(file);
  text.resize(size);
  return text;
}

}  // namespace lockstep
