// Background threads of a wire group, which advance operations that no thread
// waits for.
//
// Threads: any thread.
// Errors:  none thrown: without the background thread, waiting threads do the
//          work.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace lockstep {

// A thread that runs `body`; if the kernel refuses it, logs that and returns an
// empty one.
std::thread try_start_thread(const std::string& group,
                             const std::function<void()>& body);

}  // namespace lockstep
