#include "src/data/data_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

namespace lockstep {
namespace {

class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      // Otherwise a pipe would be waited for.
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (descriptor_ < 0)
      throw SystemError(fmt::format("cannot open {}", path), errno);
  }
  ~OpenFile() { ::close(descriptor_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

bool has_extension(const std::filesystem::path& path,
                   std::span<const std::string_view> extensions) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return std::ranges::find(extensions, extension) != extensions.end();
}

std::vector<std::byte> read_data_file(const std::filesystem::path& path,
                                      std::size_t most_bytes) {
  std::vector<std::byte> contents;
  read_data_file(path.string(), contents, most_bytes);
  return contents;
}

void read_data_file(const std::string& path, std::vector<std::byte>& contents,
                    std::size_t most_bytes) {
  const OpenFile file(path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    throw SystemError(fmt::format("cannot read {}", path), errno);
  if (!S_ISREG(status.st_mode))
    throw InvalidArgument(
        fmt::format("cannot read {}: it is not a regular file", path));
  contents.resize(
      std::min(static_cast<std::size_t>(status.st_size), most_bytes));
  std::size_t filled = 0;
  while (filled < contents.size()) {
    const ssize_t got =
        ::read(file.get(), contents.data() + filled, contents.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw SystemError(fmt::format("cannot read {}", path), errno);
    if (got == 0) break;  // the file shrank; decoding reports it
    filled += static_cast<std::size_t>(got);
  }
  contents.resize(filled);
}

InvalidArgument malformed_file(const MalformedFile& fault) {
  return InvalidArgument(fmt::format(
      "cannot read {}: {}\n"
      "  offset:   {}\n"
      "  expected: {}\n"
      "  found:    {}\n"
      "  next:     fetch the file again, or check that it is what its name "
      "says",
      fault.file, fault.problem, fault.offset, fault.expected, fault.found));
}

}  // namespace lockstep
