// Makes the C table of transport.h from a C++ class, for a plug-in to export.
//
// All code is in this header, because a plug-in links none of our libraries.
//
// Threads: as transport.h says, which holds for the class.
// Errors:  the class's exceptions become statuses: BrokenConnection becomes
//          kTransportBroken, any other kTransportFailed.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include "src/comm/wire/transport.h"

namespace lockstep {

// The connection to `peer` is gone.
struct BrokenConnection : std::runtime_error {
  BrokenConnection(int broken_peer, const std::string& why)
      : std::runtime_error(why), peer(broken_peer) {}
  int peer;
};

// The requirements on the class, besides attach(peer, socket) if the caller
// makes the connections. A Request owns a posted message: once it is destroyed,
// no thread touches the message's memory any more. wait() returns
// kTransportDone, NotYet or Closed.
template <class T>
concept TransportClass =
    std::constructible_from<T, const LockstepTransportConfig&> &&
    requires(T transport, typename T::Request& request,
             const LockstepTransportMessage& message,
             std::chrono::microseconds timeout) {
  {
    transport.send(message)
    } -> std::same_as<std::unique_ptr<typename T::Request>>;
  {
    transport.receive(message)
    } -> std::same_as<std::unique_ptr<typename T::Request>>;
  { transport.wait(request, timeout) } -> std::same_as<LockstepTransportStatus>;
  transport.leave();
  transport.close();
};

// Runs `action` and turns its exceptions into plain data.
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
    tell("an unknown error");
  }
  return kTransportFailed;
}

template <TransportClass T>
class TransportEntry {
 public:
  // The table of a transport without its own launcher.
  static constexpr LockstepTransportTable table() {
    return {.version = kTransportVersion,
            .world_rank = nullptr,
            .create = create,
            .attach = attach_of(),
            .post_send = post<&T::send>,
            .post_receive = post<&T::receive>,
            .wait = wait,
            .release = release,
            .leave = end<&T::leave>,
            .close = end<&T::close>,
            .destroy = destroy,
            .bootstrap = nullptr};
  }

 private:
  using Status = LockstepTransportStatus;
  using Outcome = LockstepTransportOutcome;
  using Request = typename T::Request;

  static T& of(LockstepTransport* transport) {
    return *reinterpret_cast<T*>(transport);
  }
  static Request& of(LockstepTransportRequest* request) {
    return *reinterpret_cast<Request*>(request);
  }

  static Status create(const LockstepTransportConfig* config,
                       LockstepTransport** transport, Outcome* outcome) {
    return guarded(outcome, [&] {
      *transport = reinterpret_cast<LockstepTransport*>(new T(*config));
      return kTransportDone;
    });
  }

  static constexpr auto attach_of()
      -> decltype(LockstepTransportTable::attach) {
    if constexpr (requires(T transport) { transport.attach(0, 0); })
      return [](LockstepTransport* transport, std::int32_t peer,
                std::int32_t socket, Outcome* outcome) {
        return guarded(outcome, [&] {
          of(transport).attach(peer, socket);
          return kTransportDone;
        });
      };
    else
      return nullptr;
  }

  template <auto kMethod>
  static Status post(LockstepTransport* transport,
                     const LockstepTransportMessage* message,
                     LockstepTransportRequest** request, Outcome* outcome) {
    return guarded(outcome, [&] {
      std::unique_ptr<Request> posted = (of(transport).*kMethod)(*message);
      *request = reinterpret_cast<LockstepTransportRequest*>(posted.release());
      return kTransportDone;
    });
  }

  static Status wait(LockstepTransport* transport,
                     LockstepTransportRequest* request,
                     std::int64_t microseconds, Outcome* outcome) {
    return guarded(outcome, [&] {
      return of(transport).wait(of(request),
                                std::chrono::microseconds(microseconds));
    });
  }

  static void release(LockstepTransport*, LockstepTransportRequest* request) {
    delete &of(request);
  }

  template <auto kMethod>
  static void end(LockstepTransport* transport) {
    Outcome ignored{};
    guarded(&ignored, [&] {
      (of(transport).*kMethod)();
      return kTransportDone;
    });
  }

  static void destroy(LockstepTransport* transport) { delete &of(transport); }
};

}  // namespace lockstep
