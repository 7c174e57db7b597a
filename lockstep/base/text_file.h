// Small files, whole.
//
// Threads: may be called from any thread; of two that replace one file the
//          later wins, as long as they are different processes.
// Errors:  SystemError naming the file and the reason; InvalidArgument for one
//          that is too large.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

// Puts `text` under the name `path` in one step: whoever reads meanwhile gets
// the earlier file or the whole new one. Its folder must exist. What a crash of
// the machine leaves is not promised: nothing is synced to the disk.
void replace_text_file(const std::filesystem::path& path,
                       std::string_view text);

// All that the file holds, if that is at most `most_bytes`.
std::string read_text_file(const std::filesystem::path& path,
                           std::size_t most_bytes);

}  // namespace lockstep
