// What liblockstep_gloo.so exports.
#include <cstdio>

#include "lockstep/comm/gloo/plugin/gloo_transport.h"

namespace lockstep {
namespace {

GlooTransport& transport_of(LockstepTransport* transport) {
  return *reinterpret_cast<GlooTransport*>(transport);
}

GlooRequest& request_of(LockstepTransportRequest* request) {
  return *reinterpret_cast<GlooRequest*>(request);
}

// Runs `action` and tells what it throws as plain data.
template <class Action>
LockstepTransportStatus guarded(LockstepTransportOutcome* outcome,
                                const Action& action) {
  const auto tell = [&](const char* text) {
    std::snprintf(outcome->text, sizeof outcome->text, "%s", text);
  };
  try {
    return action();
  } catch (const BrokenConnection& error) {
    outcome->peer = error.peer;
    tell(error.what());
    return kTransportBroken;
  } catch (const std::exception& error) {
    tell(error.what());
  } catch (...) {
    tell("an unknown error of Gloo");
  }
  return kTransportFailed;
}

LockstepTransportStatus create(const LockstepTransportConfig* config,
                               LockstepTransport** transport,
                               LockstepTransportOutcome* outcome) {
  return guarded(outcome, [&] {
    *transport =
        reinterpret_cast<LockstepTransport*>(new GlooTransport(*config));
    return kTransportDone;
  });
}

LockstepTransportStatus post_send(LockstepTransport* transport,
                                  const LockstepTransportMessage* message,
                                  LockstepTransportRequest** request,
                                  LockstepTransportOutcome* outcome) {
  return guarded(outcome, [&] {
    *request = reinterpret_cast<LockstepTransportRequest*>(
        transport_of(transport).send(*message).release());
    return kTransportDone;
  });
}

LockstepTransportStatus post_receive(LockstepTransport* transport,
                                     const LockstepTransportMessage* message,
                                     LockstepTransportRequest** request,
                                     LockstepTransportOutcome* outcome) {
  return guarded(outcome, [&] {
    *request = reinterpret_cast<LockstepTransportRequest*>(
        transport_of(transport).receive(*message).release());
    return kTransportDone;
  });
}

LockstepTransportStatus wait(LockstepTransport* transport,
                             LockstepTransportRequest* request,
                             std::int64_t microseconds,
                             LockstepTransportOutcome* outcome) {
  return guarded(outcome, [&] {
    return transport_of(transport).wait(
        request_of(request), std::chrono::microseconds(microseconds));
  });
}

void release(LockstepTransport*, LockstepTransportRequest* request) {
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

constexpr LockstepTransportTable kTable{
    .version = kTransportVersion,
    .world_rank = nullptr,
    .create = create,
    .post_send = post_send,
    .post_receive = post_receive,
    .wait = wait,
    .release = release,
    .close = close,
    .destroy = destroy,
    .bootstrap = nullptr,
};

}  // namespace
}  // namespace lockstep

extern "C" __attribute__((visibility("default"))) const LockstepTransportTable*
lockstep_transport() {
  return &lockstep::kTable;
}
