#include "src/comm/wire/arrivals.h"

#include <algorithm>
#include <chrono>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using std::chrono::microseconds;

// How old the knowledge of what has arrived may be.
constexpr microseconds kNap = 20ms;

// An error of its connection is left to the wait for it.
bool is_done(WireCore::Request& request) noexcept try {
  return request.done();
} catch (const TransportError&) {
  return false;
}

}  // namespace

void Arrivals::expect(WireCore::Request& request) {
  core_.expect(request.peer());
  pending_.push_back(&request);
}

void Arrivals::wait(WireCore::Request& request, Deadline deadline) {
  if (!request.done()) {
    WireCore::PeerWatch watch(core_, deadline);
    const auto pause_time = [&] {
      return std::chrono::duration_cast<microseconds>(
          std::clamp<Deadline::Clock::duration>(deadline.remaining(), 0us,
                                                kNap));
    };
    while (!request.wait(pause_time())) {
      note();
      watch.check();
    }
  }
  if (std::erase(pending_, &request) > 0) core_.arrived(request.peer());
}

void Arrivals::note() noexcept {
  std::erase_if(pending_, [this](WireCore::Request* request) {
    if (!is_done(*request)) return false;
    core_.arrived(request->peer());
    return true;
  });
}

}  // namespace lockstep
