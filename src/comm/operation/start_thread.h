// Background threads of a group, which advance operations that no thread waits
// for.
//
// Threads: any thread.
// Errors:  none thrown: without the background thread, waiting threads do the
//          work.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <thread>

namespace lockstep {

// A thread that runs `body`; if the kernel refuses it, warns of that and
// returns an empty one.
std::thread try_start_thread(const std::string& group,
                             const std::function<void()>& body);

// Logs that a group has no thread, because of `failure`. A process warns once:
// each operation tries again, and where the kernel refuses one thread it
// refuses all.
void warn_of_missing_thread(const std::string& group,
                            const std::exception& failure);

}  // namespace lockstep
