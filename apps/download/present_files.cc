#include "apps/download/present_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <system_error>

#include "apps/download/checksum.h"
#include "lockstep/base/error.h"
#include "src/base/name_table.h"
#include "src/base/printable.h"
#include "src/data/data_file.h"
#include "src/data/gzip.h"
#include "src/data/known_datasets.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
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

[[noreturn]] void refuse(const fs::path& path, std::string_view why,
                         std::string_view next) {
  throw Error(fmt::format(
      "{} {}\n  next:    {}, or name another folder with --data-dir",
      printable(path.string()), why, next));
}

bool training_finds(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

void check_target(const FilePlaces& places, WrongFiles wrong) {
  std::error_code ignored;
  const auto type = fs::symlink_status(places.target, ignored).type();
  if (type == fs::file_type::directory)
    refuse(places.target, "is a folder", "move it away");
  if (fs::exists(fs::file_status(type)) && wrong == WrongFiles::kRefuse)
    refuse(places.target,
           "is another file than the known one, and it is not replaced",
           "move it away, give --force to replace it");
}

}  // namespace

bool is_right_file(const fs::path& path, const KnownFile& file,
                   const KnownFile* contents) {
  if (!is_file(path)) return false;
  try {
    return has_bytes(path, file) ||
           (contents != nullptr &&
            (has_bytes(path, *contents) || holds(path, *contents)));
  } catch (const SystemError& error) {
    refuse(path,
           "cannot be read: " +
               std::generic_category().message(error.error_number()),
           "make it readable, move it away");
  }
}

std::vector<FilePlaces> places_of_files(const KnownDownload& known,
                                        const fs::path& folder) {
  const KnownDataset& dataset = row_named(kDatasets, "dataset", known.name);
  const bool in_archive = known.packing == Packing::kTarGzip;
  std::vector<FilePlaces> all;
  for (std::size_t i = 0; i < known.contents.size(); ++i) {
    const KnownFile& contents = known.contents[i];
    const KnownFile& file = in_archive ? contents : known.files[i];
    all.push_back(
        {.paths = file_places(dataset, folder, contents.name),
         .target = (in_archive ? folder / dataset.folder : folder) / file.name,
         .file = &file,
         .contents = in_archive ? nullptr : &contents});
  }
  return all;
}

std::optional<fs::path> find_right_file(const FilePlaces& places,
                                        WrongFiles wrong) {
  const auto target = std::ranges::find(places.paths, places.target);
  const auto found = std::ranges::find_if(places.paths, training_finds);
  if (found != places.paths.end() &&
      is_right_file(*found, *places.file, places.contents))
    return *found;
  if (found < target)
    refuse(*found,
           "is another file than the known one, and lockstep train would read "
           "it instead of " +
               printable(places.target.string()),
           "move it away");
  check_target(places, wrong);
  return std::nullopt;
}

}  // namespace lockstep
