// The address of a folder from which files are downloaded: http, https or file.
//
// Threads: any thread.
// Errors:  InvalidArgument for an address that is none.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Refuses an address to which no file's name can be appended.
void check_base_address(std::string_view base);

// The address of the file `name` below a checked `base`, which may end in "/".
std::string address_of(std::string_view base, std::string_view name);

}  // namespace lockstep
