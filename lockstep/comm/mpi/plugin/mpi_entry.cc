// What liblockstep_mpi.so exports.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "lockstep/comm/mpi/plugin/mpi_bootstrap.h"
#include "lockstep/comm/mpi/plugin/mpi_transport.h"

namespace lockstep {
namespace {

using std::chrono::microseconds;

// How long the other processes may take to initialise MPI, once all ranks of a
// group have met in the store.
constexpr auto kInitPatience = std::chrono::minutes(1);

MpiTransport& transport_of(LockstepTransport* transport) {
  return *reinterpret_cast<MpiTransport*>(transport);
}

MpiRequestPointer& request_of(LockstepTransportRequest* request) {
  return *reinterpret_cast<MpiRequestPointer*>(request);
}

LockstepTransportRequest* handle_of(MpiRequestPointer request) {
  return reinterpret_cast<LockstepTransportRequest*>(
      new MpiRequestPointer(std::move(request)));
}

// Runs `action` and tells what it throws as plain data.
template <class Action>
LockstepTransportStatus guarded(LockstepTransportOutcome* outcome,
                                const Action& action) {
  try {
    return action();
  } catch (const std::exception& error) {
    std::snprintf(outcome->text, sizeof outcome->text, "%s", error.what());
  } catch (...) {
    std::snprintf(outcome->text, sizeof outcome->text, "an unknown error");
  }
  return kTransportFailed;
}

void start_engine() {
  if (!MpiEngine::of_process().start(kInitPatience))
    throw MpiError(
        "MPI_Init_thread waits for processes of this mpirun that do not come\n"
        "  next:    let all of them make their first group on \"mpi\" "
        "together");
}

LockstepTransportStatus world_rank(std::int32_t* rank, std::int32_t* size,
                                   LockstepTransportOutcome* outcome) {
  return guarded(outcome, [&] {
    start_engine();
    *rank = MpiEngine::of_process().world_rank();
    *size = MpiEngine::of_process().world_size();
    return kTransportDone;
  });
}

LockstepTransportStatus create(const LockstepTransportConfig* config,
                               LockstepTransport** transport,
                               LockstepTransportOutcome* outcome) {
  return guarded(outcome, [&] {
    start_engine();
    *transport =
        reinterpret_cast<LockstepTransport*>(new MpiTransport(*config));
    return kTransportDone;
  });
}

LockstepTransportStatus post_send(LockstepTransport* transport,
                                  const LockstepTransportMessage* message,
                                  LockstepTransportRequest** request,
                                  LockstepTransportOutcome* outcome) {
  return guarded(outcome, [&] {
    *request = handle_of(transport_of(transport).send(*message));
    return kTransportDone;
  });
}

LockstepTransportStatus post_receive(LockstepTransport* transport,
                                     const LockstepTransportMessage* message,
                                     LockstepTransportRequest** request,
                                     LockstepTransportOutcome* outcome) {
  return guarded(outcome, [&] {
    *request = handle_of(transport_of(transport).receive(*message));
    return kTransportDone;
  });
}

LockstepTransportStatus wait(LockstepTransport* transport,
                             LockstepTransportRequest* request,
                             std::int64_t patience,
                             LockstepTransportOutcome* outcome) {
  return guarded(outcome, [&] {
    return transport_of(transport).wait(*request_of(request),
                                        microseconds(patience), outcome);
  });
}

void release(LockstepTransport* transport, LockstepTransportRequest* request) {
  LockstepTransportOutcome ignored{};
  guarded(&ignored, [&] {
    transport_of(transport).release(request_of(request));
    return kTransportDone;
  });
  delete &request_of(request);
}

void close(LockstepTransport* transport) {
  LockstepTransportOutcome ignored{};
  guarded(&ignored, [&] {
    transport_of(transport).close();
    return kTransportDone;
  });
}

void destroy(LockstepTransport* transport) { delete &transport_of(transport); }

LockstepTransportStatus bootstrap(char* text, std::size_t bytes,
                                  std::int64_t patience,
                                  LockstepTransportOutcome* outcome) {
  return guarded(outcome, [&] {
    std::string said = text;
    if (said.size() >= std::min(bytes, kMpiBootstrapBytes))
      throw MpiError("the text is too long");
    if (!mpi_bootstrap(said, microseconds(patience))) return kTransportNotYet;
    std::snprintf(text, bytes, "%s", said.c_str());
    return kTransportDone;
  });
}

constexpr LockstepTransportTable kTable{
    .version = kTransportVersion,
    .world_rank = world_rank,
    .create = create,
    .post_send = post_send,
    .post_receive = post_receive,
    .wait = wait,
    .release = release,
    .close = close,
    .destroy = destroy,
    .bootstrap = bootstrap,
};

}  // namespace
}  // namespace lockstep

extern "C" __attribute__((visibility("default"))) const LockstepTransportTable*
lockstep_transport() {
  return &lockstep::kTable;
}
