// Divides independent pieces of work among the calling thread and others.
//
// Threads: for_each_on_threads() returns when all of them have ended.
// Errors:  an error of one of the threads; pieces that have not begun are then
//          left out. Where the host can start fewer threads, those do the work.
#pragma once

#include <cstdint>
#include <functional>

namespace lockstep {

// Calls `work` once with each number from 0 to `count` - 1, in any order, on up
// to `threads` threads.
void for_each_on_threads(std::int64_t count, int threads,
                         const std::function<void(std::int64_t)>& work);

}  // namespace lockstep
