#include "src/download/present_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "lockstep/base/error.h"
#include "src/base/name_table.h"
#include "src/data/data_file.h"
#include "src/data/gzip.h"
#include "src/data/known_datasets.h"
#include "src/download/checksum.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

bool is_taken(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

bool has_bytes(const fs::path& path, const KnownFile& file) {
  return fs::file_size(path) == file.bytes &&
         (file.md5.empty() || md5_of_file(path) == file.md5);
}

// Whether the file is some gzip of `contents`.
bool holds(const fs::path& path, const KnownFile& contents) {
  constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
  // No gzip of `contents` is larger than this; a larger file is not read.
  if (fs::file_size(path) > contents.bytes + contents.bytes / 100 + kPieceBytes)
    return false;
  const std::vector<std::byte> file = read_data_file(path);
  if (!is_gzip(file)) return false;
  Md5 md5;
  std::uint64_t bytes = 0;
  std::vector<std::uint8_t> piece(kPieceBytes);
  try {
    GzipReader reader(file, path.string());
    while (bytes <= contents.bytes) {
      const std::size_t got = reader.read(piece);
      bytes += got;
      md5.update(std::as_bytes(std::span(piece).first(got)));
      if (got < piece.size()) break;
    }
  } catch (const InvalidArgument&) {
    return false;  // it is damaged
  }
  return bytes == contents.bytes && md5.hex() == contents.md5;
}

[[noreturn]] void refuse_wrong_file(const fs::path& path) {
  throw Error(fmt::format(
      "{} is another file than the known one, and it is not replaced\n"
      "  next:    move it away, give --force to replace it, or name another "
      "folder with --data-dir",
      path.string()));
}

[[noreturn]] void refuse_shadow(const fs::path& path, const fs::path& target) {
  throw Error(fmt::format(
      "{} is another file than the known one, and lockstep train would read it "
      "instead of {}\n"
      "  next:    move it away, or name another folder with --data-dir",
      path.string(), target.string()));
}

}  // namespace

bool is_right_file(const fs::path& path, const KnownFile& file,
                   const KnownFile* contents) {
  return is_file(path) &&
         (has_bytes(path, file) ||
          (contents != nullptr &&
           (has_bytes(path, *contents) || holds(path, *contents))));
}

std::vector<FilePlaces> file_places(const KnownDownload& known,
                                    const fs::path& folder) {
  const fs::path inner =
      folder / row_named(kDatasets, "dataset", known.name).folder;
  std::vector<FilePlaces> all;
  for (std::size_t i = 0; i < known.contents.size(); ++i) {
    const KnownFile& contents = known.contents[i];
    if (known.packing == Packing::kTarGzip) {
      all.push_back({.before = {folder / contents.name},
                     .target = inner / contents.name,
                     .file = &contents});
      continue;
    }
    const KnownFile& file = known.files[i];
    all.push_back({.before = {folder / contents.name},
                   .target = folder / file.name,
                   .after = {inner / contents.name, inner / file.name},
                   .file = &file,
                   .contents = &contents});
  }
  return all;
}

std::optional<fs::path> find_right_file(const FilePlaces& places,
                                        WrongFiles wrong) {
  const auto is_right = [&](const fs::path& path) {
    return is_right_file(path, *places.file, places.contents);
  };
  for (const fs::path& path : places.before) {
    if (is_right(path)) return path;
    if (is_taken(path)) refuse_shadow(path, places.target);
  }
  if (is_right(places.target)) return places.target;
  if (is_taken(places.target)) {
    if (wrong == WrongFiles::kRefuse) refuse_wrong_file(places.target);
    return std::nullopt;
  }
  const auto found = std::ranges::find_if(places.after, is_right);
  if (found == places.after.end()) return std::nullopt;
  return *found;
}

}  // namespace lockstep
