#include "lockstep/comm/captured_graph.h"

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

void CapturedGraph::end() noexcept {
  MutexLock lock(mutex_);
  if (!std::exchange(ended_, true) && captured_) free();
}

bool CapturedGraph::ended() const {
  MutexLock lock(mutex_);
  return ended_;
}

void CapturedGraph::captured() {
  MutexLock lock(mutex_);
  captured_ = true;
  if (!ended_) return;
  free();
  throw Error(
      "a graph was captured in vain: its group has ended meanwhile\n"
      "  next:    wait() for an operation of the group, which says why");
}

}  // namespace lockstep
