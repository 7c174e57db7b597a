// The exported function of liblockstep_mpi.so.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "src/comm/mpi/plugin/mpi_bootstrap.h"
#include "src/comm/mpi/plugin/mpi_transport.h"

namespace lockstep {
namespace {

LockstepTransportStatus world_rank(std::int32_t* rank, std::int32_t* size,
                                   LockstepTransportOutcome* outcome) {
  return guarded(outcome, [&] {
    const MpiEngine& engine = MpiEngine::started();
    *rank = engine.world_rank();
    *size = engine.world_size();
    return kTransportDone;
  });
}

LockstepTransportStatus bootstrap(char* text, std::size_t bytes,
                                  std::int64_t timeout,
                                  LockstepTransportOutcome* outcome) {
  return guarded(outcome, [&] {
    std::string said = text;
    if (said.size() >= std::min(bytes, kMpiBootstrapBytes))
      throw MpiError("the text is too long");
    if (!mpi_bootstrap(said, std::chrono::microseconds(timeout)))
      return kTransportNotYet;
    std::snprintf(text, bytes, "%s", said.c_str());
    return kTransportDone;
  });
}

}  // namespace
}  // namespace lockstep

extern "C" __attribute__((visibility("default"))) const LockstepTransportTable*
lockstep_transport() {
  static constexpr auto kTable = [] {
    auto table = lockstep::TransportEntry<lockstep::MpiTransport>::table();
    table.world_rank = lockstep::world_rank;
    table.bootstrap = lockstep::bootstrap;
    return table;
  }();
  return &kTable;
}
