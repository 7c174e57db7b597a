#include "src/base/own_process.h"

#include <pthread.h>

#include <atomic>

namespace lockstep {
namespace {

std::atomic<unsigned> forks{0};
[[maybe_unused]] const int kForkIsSeen =
    ::pthread_atfork(nullptr, nullptr, [] { ++forks; });

}  // namespace

unsigned fork_depth() noexcept { return forks.load(std::memory_order_relaxed); }

}  // namespace lockstep
