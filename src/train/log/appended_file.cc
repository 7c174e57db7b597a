#include "src/train/log/appended_file.h"

#include <fcntl.h>
#include <isa-l/crc.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

[[noreturn]] void fail_to_append(const std::filesystem::path& path,
                                 int reason) {
  throw SystemError("cannot write \"" + path.string() + "\"", reason);
}

// CRC-32C, rotated and offset, so that data which holds checksums can have one.
std::uint32_t masked_checksum(std::string_view data) {
  std::string bytes(data);  // the library needs them writable
  const std::uint32_t checksum =
      ~crc32_iscsi(reinterpret_cast<unsigned char*>(bytes.data()),
                   static_cast<int>(bytes.size()), ~std::uint32_t{0});
  return (checksum >> 15 | checksum << 17) + 0xa282ead8U;
}

template <class Number>
std::string little_endian(Number number) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof number; ++i)
    bytes.push_back(static_cast<char>(number >> 8 * i & 0xff));
  return bytes;
}

}  // namespace

AppendedFile::AppendedFile(std::filesystem::path path, Existing existing)
    : path_(std::move(path)) {
  const int only_new = existing == Existing::kRefuse ? O_EXCL : 0;
  file_ = FileDescriptor(
      ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | only_new, 0666));
  if (!file_) fail_to_append(path_, errno);
  size_ = ::lseek(file_.get(), 0, SEEK_END);
  if (size_ < 0) fail_to_append(path_, errno);  // a pipe
}

bool AppendedFile::ends_within_line() const {
  char last = '\n';
  if (size_ > 0 && ::pread(file_.get(), &last, 1, size_ - 1) != 1)
    fail_to_append(path_, errno);
  return last != '\n';
}

void AppendedFile::append(std::string_view record) {
  off_t end = size_;
  while (!record.empty()) {
    const ssize_t count =
        ::pwrite(file_.get(), record.data(), record.size(), end);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      // If even this fails, the next record overwrites the part.
      if (end != size_ && ::ftruncate(file_.get(), size_) != 0) errno = 0;
      fail_to_append(path_, reason);
    }
    end += count;
    record.remove_prefix(static_cast<std::size_t>(count));
  }
  size_ = end;
}

std::string framed_record(std::string_view data) {
  const std::string length = little_endian(std::uint64_t{data.size()});
  return length + little_endian(masked_checksum(length)) + std::string(data) +
         little_endian(masked_checksum(data));
}

}  // namespace lockstep
