// Divides independent pieces of work among threads of a command.
//
// Threads: the caller waits for all of them.
// Errors:  the first that a piece throws; pieces that have not begun are then
//          left out.
#pragma once

#include <cstdint>
#include <functional>

namespace lockstep {

// Calls `work` once with each number from 0 to `count` - 1, in any order, on up
// to `threads` threads.
void for_each_on_threads(std::int64_t count, int threads,
                         const std::function<void(std::int64_t)>& work);

}  // namespace lockstep
