// The threads of a wire group that carry on what nobody waits for.
//
// Threads: any.
// Errors:  none thrown: without such a thread whoever waits does the work.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace lockstep {

// A thread that runs `body`; none, said in the log, when the kernel refuses it.
std::thread try_thread(const std::string& group,
                       const std::function<void()>& body);

}  // namespace lockstep
