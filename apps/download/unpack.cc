#include "apps/download/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/download/base_address.h"
#include "apps/download/partial_file.h"
#include "lockstep/base/error.h"
#include "src/base/printable.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = std::size_t{1} << 16;
// Of all files that are not unpacked: descriptions and names of classes.
constexpr std::int64_t kMostOtherBytes = 1 << 20;

struct CloseArchive {
  void operator()(archive* opened) const { archive_read_free(opened); }
};

// Whether a path leads out of the folder in which it is unpacked.
bool leads_outside(std::string_view path) {
  return path.starts_with('/') ||
         std::ranges::any_of(fs::path(path),
                             [](const fs::path& part) { return part == ".."; });
}

class Unpacking {
 public:
  Unpacking(const fs::path& archive, std::string_view inside,
            std::span<const KnownFile> files, const fs::path& target)
      : path_(archive), inside_(inside), files_(files), target_(target) {}

  void run();

 private:
  void open();
  bool next();
  // The file that the entry is; nothing for one that is not unpacked.
  const KnownFile* wanted() const;
  void check_other();
  void check_wanted(const KnownFile& file) const;
  void write(const KnownFile& file);
  void check_complete() const;
  std::string name() const;
  std::string reason() const;
  [[noreturn]] void fail(const std::string& problem) const;

  const fs::path& path_;
  std::string_view inside_;
  std::span<const KnownFile> files_;
  const fs::path& target_;
  std::unique_ptr<archive, CloseArchive> archive_{};
  archive_entry* entry_ = nullptr;  // belongs to the archive
  std::int64_t other_bytes_ = 0;
  std::map<std::string_view, std::unique_ptr<PartialFile>> written_{};
};

void Unpacking::fail(const std::string& problem) const {
  throw Error(
      fmt::format("cannot unpack {}: {}\n  next:    download it anew, or {}",
                  printable(path_.string()), problem, kOtherServer));
}

std::string Unpacking::reason() const {
  const char* text = archive_error_string(archive_.get());
  return text == nullptr ? "it is damaged" : printable(text);
}

void Unpacking::open() {
  archive_.reset(archive_read_new());
  LOCKSTEP_CHECK(archive_ != nullptr, "archive_read_new");
  archive_read_support_filter_gzip(archive_.get());
  archive_read_support_format_tar(archive_.get());
  if (archive_read_open_filename(archive_.get(), path_.c_str(), kPieceBytes) !=
      ARCHIVE_OK)
    fail(reason());
}

bool Unpacking::next() {
  const int result = archive_read_next_header(archive_.get(), &entry_);
  if (result == ARCHIVE_EOF) return false;
  if (result != ARCHIVE_OK) fail(reason());
  return true;
}

std::string Unpacking::name() const {
  const char* text = archive_entry_pathname(entry_);
  if (text == nullptr) fail("a name in it cannot be read");
  std::string_view name = text;
  if (name.starts_with("./")) name.remove_prefix(2);
  return std::string(name);
}

const KnownFile* Unpacking::wanted() const {
  const std::string path = name();
  const auto found = std::ranges::find_if(files_, [&](const KnownFile& file) {
    return path == fmt::format("{}/{}", inside_, file.name);
  });
  return found == files_.end() ? nullptr : &*found;
}

void Unpacking::check_other() {
  const std::string path = name();
  const auto type = archive_entry_filetype(entry_);
  if (leads_outside(path))
    fail(fmt::format("\"{}\" leads out of the folder", printable(path)));
  if (archive_entry_hardlink(entry_) != nullptr ||
      (type != AE_IFREG && type != AE_IFDIR))
    fail(fmt::format("\"{}\" is a link or a device", printable(path)));
  const std::int64_t bytes = archive_entry_size(entry_);
  if (bytes < 0 || bytes > kMostOtherBytes - other_bytes_)
    fail(fmt::format("\"{}\" is larger than what else may be in it",
                     printable(path)));
  other_bytes_ += bytes;
}

void Unpacking::check_wanted(const KnownFile& file) const {
  if (archive_entry_hardlink(entry_) != nullptr ||
      archive_entry_filetype(entry_) != AE_IFREG)
    fail(fmt::format("{} is not a regular file", file.name));
  const std::int64_t bytes = archive_entry_size(entry_);
  if (bytes < 0 || static_cast<std::uint64_t>(bytes) != file.bytes)
    fail(fmt::format("{} has {} bytes, but the right file has {}", file.name,
                     bytes, file.bytes));
  if (written_.contains(file.name))
    fail(fmt::format("{} is twice in it", file.name));
}

void Unpacking::write(const KnownFile& file) {
  auto& out = *written_
                   .emplace(file.name,
                            std::make_unique<PartialFile>(target_ / file.name))
                   .first->second;
  out.restart();
  std::vector<std::byte> piece(kPieceBytes);
  for (;;) {
    const la_ssize_t got =
        archive_read_data(archive_.get(), piece.data(), piece.size());
    if (got < 0) fail(reason());
    if (got == 0) break;
    const auto bytes = std::span(piece).first(static_cast<std::size_t>(got));
    if (out.size() + bytes.size() > file.bytes)
      fail(fmt::format("{} is larger than it says", file.name));
    out.append(bytes);
  }
  if (out.size() != file.bytes)
    fail(fmt::format("{} ends after {} of {} bytes", file.name, out.size(),
                     file.bytes));
}

void Unpacking::check_complete() const {
  for (const KnownFile& file : files_)
    if (!written_.contains(file.name))
      fail(fmt::format("{}/{} is missing in it", inside_, file.name));
}

void Unpacking::run() {
  open();
  try {
    while (next()) {
      const KnownFile* file = wanted();
      if (file == nullptr) {
        check_other();
        continue;
      }
      check_wanted(*file);
      write(*file);
    }
    check_complete();
    for (auto& [name, file] : written_) file->finish();
  } catch (...) {
    for (auto& [name, file] : written_) file->remove();
    throw;
  }
}

}  // namespace

void unpack_tar_gzip(const fs::path& archive, std::string_view inside,
                     std::span<const KnownFile> files, const fs::path& target) {
  Unpacking(archive, inside, files, target).run();
}

}  // namespace lockstep
