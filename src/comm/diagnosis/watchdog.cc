#include "src/comm/diagnosis/watchdog.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/base/signals_blocked.h"
#include "src/net/wait.h"
#include "src/store/record_request.h"

namespace lockstep {
namespace {

// For a call that a live store answers at once.
constexpr std::chrono::seconds kStorePatience{1};

std::thread start_thread(std::function<void()> body) {
  const SignalsBlocked blocked;
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw SystemError("could not start the watchdog's thread",
                      error.code().value());
  }
}

}  // namespace

Watchdog::Watchdog(std::shared_ptr<Recorder> recorder,
                   std::shared_ptr<Store> store, WatchdogOptions options)
    : recorder_(std::move(recorder)),
      store_(std::move(store)),
      options_(std::move(options)),
      stalls_(recorder_, options_.timeout),
      thread_(start_thread([this] { run(); })) {}

Watchdog::~Watchdog() {
  ended_.cancel();
  thread_.join();
}

template <class Call>
void Watchdog::with_store(const Call& call) {
  if (!store_) return;
  try {
    call(*store_);
  } catch (const Cancelled&) {
    return;
  } catch (const Timeout&) {
    return;
  } catch (const Error& error) {
    log(LogLevel::kDebug, error.what());
    store_.reset();
  }
}

void Watchdog::run() {
  with_store([&](Store& store) {
    const int rank = recorder_->rank();
    recorder_->set_job(
        job_name(store, recorder_->suggest_job(), kStorePatience));
    next_request_ = next_request(store, kStorePatience);
    next_question_ = next_question(store, rank, kStorePatience);
    store.set(listening_key(rank), to_bytes("yes"), kStorePatience);
  });
  while (!ended_.cancelled()) try {
      turn();
    } catch (const std::exception& error) {
      // Probably out of memory. The next check comes later.
      log(LogLevel::kError, error.what());
      wait_for(ended_.descriptor(), POLLIN, options_.timeout);
    }
}

void Watchdog::turn() {
  const auto now = Deadline::Clock::now();
  if (now >= stalls_.next_look())
    for (Stall& stall : stalls_.look(now)) open_inquiry(std::move(stall));
  close_inquiries();
  if (const auto key = wait_for_key(due())) handle(*key);
}

Deadline Watchdog::due() const {
  Deadline due(stalls_.next_look());
  for (const Inquiry& inquiry : inquiries_)
    due = std::min(due, inquiry.deadline);
  return due;
}

std::optional<std::string> Watchdog::wait_for_key(Deadline due) {
  std::vector<std::string> keys{
      request_key(next_request_),
      question_key(recorder_->rank(), next_question_)};
  for (const Inquiry& inquiry : inquiries_)
    for (const auto& [rank, number] : inquiry.questions)
      keys.push_back(answer_key(rank, number));
  std::optional<std::string> found;
  with_store(
      [&](Store& store) { found = keys[store.wait_any(keys, due, &ended_)]; });
  if (!store_) wait_for(ended_.descriptor(), POLLIN, due);
  return found;
}

void Watchdog::handle(const std::string& key) {
  const int rank = recorder_->rank();
  if (key == request_key(next_request_)) {
    recorder_->dump("request");
    with_store([&](Store& store) {
      store.set(written_key(next_request_, rank), to_bytes("yes"),
                kStorePatience);
    });
    ++next_request_;
  } else if (key == question_key(rank, next_question_)) {
    with_store([&](Store& store) {
      answer(store, rank, next_question_,
             recorder_->describe_activity(Deadline::Clock::now()),
             kStorePatience);
    });
    ++next_question_;
  } else {
    take_answers(key);
  }
}

void Watchdog::take_answers(const std::string& key) {
  for (Inquiry& inquiry : inquiries_)
    std::erase_if(inquiry.questions, [&](const auto& question) {
      const auto [rank, number] = question;
      if (answer_key(rank, number) != key) return false;
      with_store([&, rank = rank](Store& store) {
        inquiry.activities[rank] = to_text(store.get(key, kStorePatience));
        store.erase(key, kStorePatience);
      });
      return true;
    });
}

void Watchdog::open_inquiry(Stall stall) {
  Inquiry inquiry{.deadline = Deadline(options_.patience_for_answers)};
  const std::size_t asked =
      std::min(stall.missing.size(), StallWatch::kMostNamed);
  for (std::size_t i = 0; i < asked; ++i)
    with_store([&](Store& store) {
      const int rank = stall.missing[i].rank_in_job;
      inquiry.questions[rank] = ask(store, rank, kStorePatience);
    });
  inquiry.stall = std::move(stall);
  inquiries_.push_back(std::move(inquiry));
}

void Watchdog::close_inquiries() {
  std::erase_if(inquiries_, [&](const Inquiry& inquiry) {
    if (!inquiry.questions.empty() && !inquiry.deadline.expired()) return false;
    const std::string line = describe(inquiry.stall, inquiry.activities);
    if (options_.warn)
      options_.warn(line);
    else
      log(LogLevel::kWarn, line);
    return true;
  });
}

}  // namespace lockstep
