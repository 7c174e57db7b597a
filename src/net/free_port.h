// A TCP port for a program to bind later.
//
// Threads: any thread.
// Errors:  NetworkError when no port is free or the requested one is taken,
//          SystemError when no socket can be created.
#pragma once

#include <cstdint>

namespace lockstep {

// A port that is free on every address. It lies outside the kernel's ephemeral
// range, so it stays free until the program that receives it binds it. (A bound
// socket would hold it more safely, but a program that does not set
// SO_REUSEADDR could then not bind it.)
std::uint16_t find_free_port();

// Throws when `port` is taken.
void check_port_is_free(std::uint16_t port);

}  // namespace lockstep
