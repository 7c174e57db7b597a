#include "src/launch/launcher/ready_watch.h"

#include <utility>

#include "lockstep/store/store.h"
#include "src/base/log.h"
#include "src/launch/worker/own_store.h"
#include "src/store/elastic_round.h"

namespace lockstep {

ReadyWatch::ReadyWatch(std::string url, std::string token, int id)
    : url_(std::move(url)),
      token_(std::move(token)),
      id_(id),
      thread_([this] { run(); }) {}

ReadyWatch::~ReadyWatch() {
  cancelled_.cancel();
  if (thread_.joinable()) thread_.join();
}

void ReadyWatch::run() {
  try {
    const auto store =
        open_store(url_, {.token = token_, .deadline = kOwnStoreAnswers});
    store->get(elastic_ready_key(id_), Deadline::never(), &cancelled_);
    ready_.signal();
  } catch (const std::exception& error) {
    log(LogLevel::kDebug, error.what());
  }
}

}  // namespace lockstep
