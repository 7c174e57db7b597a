// Replaces a file so that at every moment its name holds either the earlier
// content or the whole new one, even if a process dies or the disk fails.
//
// The bytes go to a temporary file in the same folder, are synced to the disk
// and take the name in one rename; then the folder is synced too. A killed
// writer leaves the earlier file unchanged and beside it a temporary file,
// which may be deleted. Links, modes and names are those of
// src/base/replacing_file.h.
//
// Threads: may be called from any thread; of two writers to one path the later
//          rename wins; the contents never mix.
// Errors:  SystemError naming the file, the step that failed and the reason;
//          the earlier file is then untouched. The temporary one is removed,
//          unless it is complete and cannot take the name: the error then names
//          it. SystemError also for what check_replaceable() refuses.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>

namespace lockstep {

// Replaces `path` by the concatenation of `pieces`. Its folder must exist.
void replace_file(const std::filesystem::path& path,
                  std::span<const std::span<const std::byte>> pieces);

// Takes the next bytes of a file.
using ByteSink = std::function<void(std::span<const std::byte>)>;

// Replaces `path` by what `write` gives to the sink: for content that is not in
// memory as a whole. What `write` throws passes through, and the earlier file
// stays. A new file gets the attributes of the file `like`, if that exists.
void replace_file(const std::filesystem::path& path,
                  const std::function<void(const ByteSink&)>& write,
                  const std::filesystem::path& like = {});

// Gives the complete folder `from` the name `to` beside it, in one step also
// where `to` is a folder already, whose content is then deleted. The files in
// `from` must be on the disk. After an error both folders are there, `to` maybe
// under another name. The new folder gets the mode of the earlier one. Where
// the file system cannot exchange two names, a kill in between leaves no folder
// `to`.
void replace_folder(const std::filesystem::path& from,
                    const std::filesystem::path& to);

// As renameat2() with RENAME_EXCHANGE: 0, or -1 and errno.
using ExchangeNames = std::function<int(const std::filesystem::path&,
                                        const std::filesystem::path&)>;
// The same, with another exchange, as of a file system that has none.
void replace_folder(const std::filesystem::path& from,
                    const std::filesystem::path& to,
                    const ExchangeNames& exchange);

// Throws what replace_file would throw if files cannot be made beside `path` or
// cannot take its name: a check before hours of work whose result should go
// there. Creates a missing folder.
void prepare_to_replace(const std::filesystem::path& path);

}  // namespace lockstep
