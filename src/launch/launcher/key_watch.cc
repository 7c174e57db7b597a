#include "src/launch/launcher/key_watch.h"

#include <poll.h>

#include <chrono>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/base/log.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

// To open a connection, and between two attempts.
constexpr std::chrono::seconds kAttempt{1};

}  // namespace

KeyWatch::KeyWatch(std::string url, std::string token,
                   std::vector<std::string> keys)
    : url_(std::move(url)),
      token_(std::move(token)),
      keys_(std::move(keys)),
      thread_([this] { run(); }) {}

KeyWatch::~KeyWatch() {
  cancelled_.cancel();
  if (thread_.joinable()) thread_.join();
}

// A broken connection, as over a link that comes back, is opened again.
void KeyWatch::run() {
  while (!cancelled_.cancelled()) try {
      const auto store =
          open_store(url_, {.token = token_, .deadline = kAttempt});
      store->wait_any(keys_, Deadline::never(), &cancelled_);
      return set_.signal();
    } catch (const Cancelled&) {
      return;
    } catch (const std::exception& error) {
      log(LogLevel::kDebug, error.what());
      wait_for(cancelled_.descriptor(), POLLIN, kAttempt);
    }
}

}  // namespace lockstep
