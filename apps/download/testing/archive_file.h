// Writes .tar.gz files with entries of every kind, for the tests of this layer.
//
// Threads: one thread at a time per object.
#pragma once

#include <archive.h>
#include <archive_entry.h>

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

namespace lockstep {

struct ArchiveItem {
  std::string path{};
  std::string contents{};
  unsigned type = AE_IFREG;
  std::string link{};      // of a symbolic link
  std::string hardlink{};  // an earlier entry
};

class ArchiveFile {
 public:
  explicit ArchiveFile(const std::filesystem::path& path) {
    archive_write_add_filter_gzip(archive_.get());
    archive_write_set_format_pax_restricted(archive_.get());
    check(archive_write_open_filename(archive_.get(), path.c_str()));
  }

  void add(const ArchiveItem& item) {
    const std::unique_ptr<archive_entry, decltype(&archive_entry_free)> entry(
        archive_entry_new(), archive_entry_free);
    archive_entry_set_pathname(entry.get(), item.path.c_str());
    archive_entry_set_filetype(entry.get(), item.type);
    archive_entry_set_perm(entry.get(), 0644);
    archive_entry_set_size(entry.get(),
                           static_cast<la_int64_t>(item.contents.size()));
    if (!item.link.empty())
      archive_entry_set_symlink(entry.get(), item.link.c_str());
    if (!item.hardlink.empty())
      archive_entry_set_hardlink(entry.get(), item.hardlink.c_str());
    check(archive_write_header(archive_.get(), entry.get()));
    if (!item.contents.empty() &&
        archive_write_data(archive_.get(), item.contents.data(),
                           item.contents.size()) < 0)
      fail();
  }

  void close() { check(archive_write_close(archive_.get())); }

 private:
  struct Free {
    void operator()(archive* written) const { archive_write_free(written); }
  };

  void check(int result) const {
    if (result != ARCHIVE_OK) fail();
  }
  [[noreturn]] void fail() const {
    throw std::runtime_error(archive_error_string(archive_.get()));
  }

  std::unique_ptr<archive, Free> archive_{archive_write_new()};
};

}  // namespace lockstep
