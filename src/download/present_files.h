// Which files of a known data set a folder already has, and whether they are
// right.
//
// Threads: any thread.
// Errors:  SystemError for a file that cannot be read.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "src/download/known_downloads.h"

namespace lockstep {

// Whether the file at `path` has what `file` says, with any compression of
// `contents` if that is not null. False for what is no regular file.
bool is_right_file(const std::filesystem::path& path, const KnownFile& file,
                   const KnownFile* contents = nullptr);

// Where a file of a data set may be, in the order in which training looks.
struct FilePlaces {
  // Training reads these in the place of `target`.
  std::vector<std::filesystem::path> before{};
  std::filesystem::path target{};  // where a download writes it
  std::vector<std::filesystem::path> after{};
  const KnownFile* file = nullptr;      // at `target`
  const KnownFile* contents = nullptr;  // at `target`, uncompressed
};

// The places of each file of `known` for training that reads `folder`.
std::vector<FilePlaces> file_places(const KnownDownload& known,
                                    const std::filesystem::path& folder);

enum class WrongFiles { kRefuse, kReplace };

// Where the right file is; nothing if it has to be written to `target`. Error,
// with the next step, for a wrong file at `target`, unless `wrong` says to
// replace it, and for one that training would read in its place.
std::optional<std::filesystem::path> find_right_file(const FilePlaces& places,
                                                     WrongFiles wrong);

}  // namespace lockstep
