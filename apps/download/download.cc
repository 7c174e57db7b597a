#include "apps/download/download.h"

#include <fmt/format.h>

#include <system_error>

#include "apps/download/base_address.h"
#include "apps/download/checksum.h"
#include "apps/download/partial_file.h"
#include "apps/download/transfer.h"
#include "apps/download/unpack.h"
#include "lockstep/base/error.h"
#include "src/base/printable.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// What came over the network, and how long that took.
struct Received {
  std::uint64_t bytes = 0;
  std::chrono::duration<double> duration{};
};

fs::path absolute_folder(const fs::path& folder) {
  std::error_code refused;
  fs::path path = fs::absolute(folder, refused);
  if (!refused) return path;
  throw Error(fmt::format(
      "the current folder cannot be found: {}\n"
      "  next:    change to another one, or give --data-dir an absolute path",
      refused.message()));
}

class Download {
 public:
  Download(const DownloadOptions& options, DownloadView& view)
      : options_(options),
        view_(view),
        base_(options.base.empty() ? options.known.base : options.base),
        folder_(absolute_folder(options.folder)) {}

  void run();

 private:
  void fetch_gzip(const FilePlaces& places);
  void fetch_archive(const std::vector<FilePlaces>& places);
  void unpack(const fs::path& archive,
              const std::vector<FilePlaces>& places) const;
  bool is_there(const FilePlaces& places);
  // Completes `part` and checks it.
  Received fetch(const KnownFile& file, const KnownFile* contents,
                 PartialFile& part);
  void check(const KnownFile& file, const KnownFile* contents,
             const std::string& origin, PartialFile& part);

  const DownloadOptions& options_;
  DownloadView& view_;
  std::string base_;
  fs::path folder_;
  Connection connection_{};
};

// Removes a wrong file, so that the next attempt does not go on from it.
// `origin` is where it is from.
void Download::check(const KnownFile& file, const KnownFile* contents,
                     const std::string& origin, PartialFile& part) {
  if (is_right_file(part.path(), file, contents)) return;
  const std::uint64_t bytes = part.size();
  const std::string md5 = md5_of_file(part.path());
  part.remove();
  throw Error(
      fmt::format("{} is not the known file, and was removed\n"
                  "  expected: {} bytes with the MD5 checksum {}\n"
                  "  found:    {} bytes with {}\n"
                  "  next:     repeat the command, or {}",
                  origin, file.bytes, file.md5, bytes, md5, kOtherServer));
}

Received Download::fetch(const KnownFile& file, const KnownFile* contents,
                         PartialFile& part) {
  if (part.size() > file.bytes) part.restart();
  // A file that was compressed anew may be complete at another size.
  if (is_right_file(part.path(), file, contents)) return {};
  if (part.size() == file.bytes)
    check(file, contents, printable(part.path().string()), part);
  const std::string address = address_of(base_, file.name);
  const fs::path path = folder_ / file.name;
  const auto began = std::chrono::steady_clock::now();
  Received received;
  try {
    received.bytes =
        connection_.fetch({.address = address,
                           .most_bytes = file.bytes,
                           .timeout = options_.timeout,
                           .certificates = options_.certificates,
                           .on_progress =
                               [&](std::uint64_t bytes) {
                                 view_.file_grows(path, bytes, file.bytes);
                               }},
                          part);
  } catch (...) {
    if (part.size() == 0) part.remove();
    throw;
  }
  received.duration = std::chrono::steady_clock::now() - began;
  check(file, contents, shown_address(address), part);
  return received;
}

bool Download::is_there(const FilePlaces& places) {
  const auto found = find_right_file(places, options_.wrong);
  if (!found) return false;
  remove_part_of(places.target);
  view_.file_was_there(*found);
  return true;
}

void Download::fetch_gzip(const FilePlaces& places) {
  if (is_there(places)) return;
  PartialFile part(places.target);
  // Another process may have written it before this one had the lock.
  if (is_there(places)) {
    part.remove();
    return;
  }
  const Received received = fetch(*places.file, places.contents, part);
  part.finish();
  view_.file_is_complete(places.target, received.bytes, received.duration);
}

void Download::fetch_archive(const std::vector<FilePlaces>& places) {
  std::vector<fs::path> found;
  for (const FilePlaces& file : places)
    if (const auto path = find_right_file(file, options_.wrong))
      found.push_back(*path);
  const KnownFile& archive = options_.known.files.front();
  const fs::path whole = folder_ / archive.name;
  if (found.size() == places.size()) {
    remove_part_of(whole);
    for (const fs::path& path : found) view_.file_was_there(path);
    return;
  }
  if (is_right_file(whole, archive)) {
    remove_part_of(whole);
    view_.file_was_there(whole);
    return unpack(whole, places);
  }
  PartialFile part(whole);
  const Received received = fetch(archive, nullptr, part);
  unpack(part.path(), places);
  part.remove();
  view_.file_is_complete(places.front().target.parent_path(), received.bytes,
                         received.duration);
}

void Download::unpack(const fs::path& archive,
                      const std::vector<FilePlaces>& places) const {
  const fs::path inner = places.front().target.parent_path();
  make_folder(inner);
  unpack_tar_gzip(archive, inner.filename().string(), options_.known.contents,
                  inner);
}

void Download::run() {
  check_base_address(base_);
  make_folder(folder_);
  const std::vector<FilePlaces> places =
      places_of_files(options_.known, folder_);
  if (options_.known.packing == Packing::kTarGzip) return fetch_archive(places);
  for (const FilePlaces& file : places) fetch_gzip(file);
}

}  // namespace

void download_dataset(const DownloadOptions& options, DownloadView& view) {
  Download(options, view).run();
}

}  // namespace lockstep
