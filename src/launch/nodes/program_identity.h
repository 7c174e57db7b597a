// Tells whether two hosts of a job start the same program.
//
// Threads: any thread; reads the disk.
// Errors:  none: what cannot be read has no identity.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace lockstep {

// The file that the user has written, as far as `command` tells: its first word
// if that is a path with a slash, or FILE.py in "python3 FILE.py". Empty for
// anything else: a program that is found in PATH is installed on each host, and
// may differ by its patch level.
std::filesystem::path own_program(std::span<const std::string> command);

// "81920 bytes, hash 5f3c…" of a regular file; above 1 GiB "… bytes" alone.
// Empty where it cannot be read.
std::string identity_of(const std::filesystem::path& program);

}  // namespace lockstep
