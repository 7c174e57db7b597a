// Replaces a file so that at every moment either the earlier content or the
// whole new one is under its name: whoever dies, whatever the disk says.
//
// The bytes go to a temporary file in the same folder, are synced to the disk
// and take the name in one rename; then the folder is synced too. A writer that
// is killed leaves the earlier file as it was and beside it a
// `.NAME.PID-N.tmp`, which may be deleted.
//
// Threads: may be called from any thread; of two writers to one path the later
//          rename wins, and neither sees a mixture.
// Errors:  SystemError naming the file, the step that failed and the reason;
//          the earlier file is then untouched and the temporary one removed. So
//          it is where something other than a file has the name: a folder, a
//          device, a pipe.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace lockstep {

// Replaces `path` by the concatenation of `pieces`. Its folder must exist.
void replace_file(const std::filesystem::path& path,
                  std::span<const std::span<const std::byte>> pieces);

// Throws what replace_file would throw if files cannot be made beside `path`:
// asks before hours of work whose result should go there. Creates the folder
// where it is missing.
void prepare_to_replace(const std::filesystem::path& path);

}  // namespace lockstep
