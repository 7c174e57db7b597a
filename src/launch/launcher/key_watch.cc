#include "src/launch/launcher/key_watch.h"

#include <utility>

#include "lockstep/store/store.h"
#include "src/base/log.h"
#include "src/launch/worker/own_store.h"

namespace lockstep {

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

void KeyWatch::run() {
  try {
    const auto store =
        open_store(url_, {.token = token_, .deadline = kJobStoreAnswers});
    store->wait_any(keys_, Deadline::never(), &cancelled_);
    set_.signal();
  } catch (const std::exception& error) {
    log(LogLevel::kDebug, error.what());
  }
}

}  // namespace lockstep
