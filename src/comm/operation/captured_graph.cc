#include "src/comm/operation/captured_graph.h"

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
      "the captured graph is useless: its group ended during the capture\n"
      "  next:    wait() for an operation of the group, which throws the "
      "reason");
}

}  // namespace lockstep
