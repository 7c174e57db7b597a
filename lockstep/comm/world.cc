#include "lockstep/comm/world.h"

namespace lockstep {

std::string World::numbered(const std::string& name) {
  MutexLock lock(mutex_);
  return name + "#" + std::to_string(++counts_[name]);
}

}  // namespace lockstep
