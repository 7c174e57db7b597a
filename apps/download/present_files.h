// Which files of a known dataset a folder already has, and whether they are
// right.
//
// Threads: any thread.
// Errors:  Error, with the next step, for a file that cannot be read.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "apps/download/known_downloads.h"

namespace lockstep {

// Whether the file at `path` has what `file` says, with any compression of
// `contents` if that is not null. False for what is no regular file.
bool is_right_file(const std::filesystem::path& path, const KnownFile& file,
                   const KnownFile* contents = nullptr);

// Where a file of a dataset may be.
struct FilePlaces {
  // Training reads the first of these that exists.
  std::vector<std::filesystem::path> paths{};
  std::filesystem::path target{};       // of `paths`, where a download writes
  const KnownFile* file = nullptr;      // at `target`
  const KnownFile* contents = nullptr;  // at `target`, uncompressed
};

// The places of each file of `known` for training that reads `folder`.
std::vector<FilePlaces> places_of_files(const KnownDownload& known,
                                        const std::filesystem::path& folder);

enum class WrongFiles { kRefuse, kReplace };

// The file that training reads, if it is right; nothing if the right one has to
// be written to `target`. Error, with the next step, for a wrong file at
// `target` unless `wrong` says to replace it, for a folder there, for a wrong
// file that training reads before `target`, and for a file that cannot be read.
std::optional<std::filesystem::path> find_right_file(const FilePlaces& places,
                                                     WrongFiles wrong);

}  // namespace lockstep
