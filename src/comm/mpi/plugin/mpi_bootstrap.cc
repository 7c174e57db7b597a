#include "src/comm/mpi/plugin/mpi_bootstrap.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "src/comm/mpi/plugin/mpi_transport.h"

namespace lockstep {
namespace {

using std::chrono::microseconds;
using Clock = std::chrono::steady_clock;

microseconds left_until(Clock::time_point end) {
  return std::max(microseconds(0),
                  std::chrono::duration_cast<microseconds>(end - Clock::now()));
}

// Whether `request` is done by `end`.
bool finish(MpiTransport& transport,
            const std::unique_ptr<MpiTransport::Request>& request,
            Clock::time_point end) try {
  return transport.wait(*request, left_until(end)) == kTransportDone;
} catch (const std::exception& error) {
  throw MpiError("the process of world rank " +
                 std::to_string(request->message().peer) +
                 " is gone: " + error.what());
}

}  // namespace

bool mpi_bootstrap(std::string& text, microseconds timeout) {
  const auto end = Clock::now() + timeout;
  MpiEngine& engine = MpiEngine::of_process();
  if (!engine.start(timeout)) return false;
  std::vector<std::int32_t> everybody(
      static_cast<std::size_t>(engine.world_size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  MpiTransport world({.rank = engine.world_rank(),
                      .size = engine.world_size(),
                      .sockets = nullptr,
                      .world_ranks = everybody.data(),
                      .group = "the bootstrap of Lockstep"});
  std::array<char, kMpiBootstrapBytes> bytes{};
  if (engine.world_rank() == 0) text.copy(bytes.data(), bytes.size() - 1);
  const auto message = [&](int peer) {
    return LockstepTransportMessage{peer, kChannelControl, 0, bytes.data(),
                                    bytes.size()};
  };
  if (engine.world_rank() != 0) {
    const bool came = finish(world, world.receive(message(0)), end);
    text = bytes.data();
    return came;
  }
  for (int peer = 1; peer < engine.world_size(); ++peer)
    if (!finish(world, world.send(message(peer)), end)) return false;
  return true;
}

}  // namespace lockstep
