// The files of datasets: reads them, and describes what is wrong with one.
//
// Threads: any thread.
// Errors:  SystemError when a file cannot be read; InvalidArgument for what is
//          not a regular file.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

// Of the files that folders of images list.
inline constexpr std::array<std::string_view, 3> kImageExtensions{
    ".jpg", ".jpeg", ".png"};

// Whether the name of `path` ends in one of `extensions`, in any case.
bool has_extension(const std::filesystem::path& path,
                   std::span<const std::string_view> extensions);

inline constexpr std::size_t kWholeFile =
    std::numeric_limits<std::size_t>::max();

// The contents of the file at `path`, of a longer one the first `most_bytes`.
std::vector<std::byte> read_data_file(const std::filesystem::path& path,
                                      std::size_t most_bytes = kWholeFile);

// The same into `contents`, whose memory is used again.
void read_data_file(const std::string& path, std::vector<std::byte>& contents,
                    std::size_t most_bytes = kWholeFile);

// Every message about a malformed file has the same four facts.
struct MalformedFile {
  std::string file = {};
  std::string problem = {};  // "the magic number is wrong"
  // The byte offset of the problem; for gzip files in the decompressed data,
  // unless `problem` concerns the compressed data.
  std::size_t offset = 0;
  std::string expected = {};
  std::string found = {};
};

// The exception to throw for `fault`.
InvalidArgument malformed_file(const MalformedFile& fault);

}  // namespace lockstep
