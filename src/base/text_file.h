// Reads and writes whole small files.
//
// Threads: any thread. When two processes replace one file, the later one wins.
// Errors:  SystemError naming the file and the reason; InvalidArgument for a
//          file that is too large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

// Replaces the file `path` by `text` in one step, as ReplacingFile does. Its
// folder must exist. The file is not synced to the disk, so a crash of the
// machine may lose it. A new file gets the attributes of the file `like`, if
// that exists.
void replace_text_file(const std::filesystem::path& path, std::string_view text,
                       const std::filesystem::path& like = {});

// Whether a file of `bytes` exceeds the limit on files' sizes (ulimit -f). A
// write beyond that limit sends SIGXFSZ, which ends a program that does not
// handle it.
bool exceeds_file_size_limit(std::uint64_t bytes);

// The file's contents, at most `most_bytes`.
std::string read_text_file(const std::filesystem::path& path,
                           std::size_t most_bytes);

// The same of a file that another program may have made, and may still write:
// it opens no link, pipe or device. Empty for anything but a regular file of at
// most `most_bytes`.
std::string read_regular_file(const std::filesystem::path& path,
                              std::size_t most_bytes);

}  // namespace lockstep
