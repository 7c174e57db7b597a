// Tells whether two hosts of a job start the same program.
//
// Threads: any thread; reads the disk.
// Errors:  none: what cannot be read has no identity.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// "train (81920 bytes, hash 5f3c…)" for the program or script in `command`: the
// first word that names a regular file outside the folders of the system, whose
// files may differ from host to host by patch level. The first word is searched
// in `path` (PATH), as a shell does. Empty where no word is such a file, and
// for modules of Python. Of files above 1 GiB only the size is compared.
std::string program_identity(std::span<const std::string> command,
                             std::string_view path);

}  // namespace lockstep
