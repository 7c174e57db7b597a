// The address of a folder from which files are downloaded: http, https or file.
// libcurl parses it.
//
// Threads: any thread.
// Errors:  InvalidArgument for a malformed address.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

// The next step where a server is at fault.
inline constexpr std::string_view kOtherServer =
    "name another server with --from";

// Refuses an address to which no file's name can be appended.
void check_base_address(const std::string& base);

// The address of the file `name` below a checked `base`, which may end in "/".
std::string address_of(std::string_view base, std::string_view name);

// "http", "https" or "file", of a checked address.
std::string scheme_of(const std::string& address);

// The path that a "file" address names.
std::filesystem::path path_of(const std::string& address);

// For messages: without a user's name and password, and printable.
std::string shown_address(const std::string& address);

}  // namespace lockstep
