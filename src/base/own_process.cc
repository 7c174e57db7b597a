#include "src/base/own_process.h"

#include <pthread.h>

#include <atomic>

namespace lockstep {
namespace {

std::atomic<unsigned> depth{0};
[[maybe_unused]] const int kForkIsSeen =
    ::pthread_atfork(nullptr, nullptr, [] { ++depth; });

}  // namespace

unsigned fork_depth() noexcept { return depth.load(std::memory_order_relaxed); }

}  // namespace lockstep
