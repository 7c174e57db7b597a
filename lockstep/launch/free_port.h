// A TCP port for a program to bind later.
//
// Threads: any thread.
// Errors:  NetworkError when there is none or the one asked for is taken,
//          SystemError when no socket can be made.
#pragma once

#include <cstdint>

namespace lockstep {

// A port that nobody has bound, on any address. It is taken from outside the
// range from which the kernel serves those who do not care, so that it stays
// free until the program that is told of it asks for it by number. (Held bound
// it would be safer still, but then programs that do not set SO_REUSEADDR could
// not have it.)
std::uint16_t find_free_port();

// Refuses `port` when it is taken.
void check_port_is_free(std::uint16_t port);

}  // namespace lockstep
