// Unpacks expected files from a .tar.gz; libarchive reads it.
//
// The archive may be anything: only the expected names are written, only as
// regular files of their known sizes, and none outside the given folder.
//
// Threads: one thread at a time per folder.
// Errors:  Error for an archive that is damaged, or has anything unexpected in
//          it; no file is in place then. Those of PartialFile.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "apps/download/known_downloads.h"

namespace lockstep {

// Writes `files`, which lie in the folder `inside` of the archive, to `target`,
// a folder that exists; they replace files of their names there.
void unpack_tar_gzip(const std::filesystem::path& archive,
                     std::string_view inside, std::span<const KnownFile> files,
                     const std::filesystem::path& target);

}  // namespace lockstep
