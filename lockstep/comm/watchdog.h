// The thread that speaks up when this rank waits too long: it says for whom,
// and what that rank is doing instead.
//
// It looks at the recorder when an operation's patience may have ended, and
// otherwise sleeps in a wait on the job's store, where other ranks ask what
// this one is doing and the launcher asks for its record (see
// store/record_request.h). It knows groups and backends only through weak
// pointers.
//
// Threads: construct and destroy it in any thread but its own.
// Errors:  SystemError from the constructor when there are no threads or
//          descriptors left. Without a store it goes on, without answers.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/base/cancellation.h"
#include "lockstep/comm/recorder.h"
#include "lockstep/comm/stall_watch.h"
#include "lockstep/store/store.h"

namespace lockstep {

struct WatchdogOptions {
  // How long an operation may wait before there is a line about it.
  std::chrono::duration<double> patience = std::chrono::seconds(10);
  // How long the missing ranks have to say what they are doing.
  std::chrono::duration<double> patience_for_answers = std::chrono::seconds(1);
  // Takes the lines; warnings in the log when empty.
  std::function<void(std::string_view)> warn{};
};

class Watchdog {
 public:
  Watchdog(std::shared_ptr<Recorder> recorder, std::shared_ptr<Store> store,
           WatchdogOptions options);
  // Waits for its thread, which waits for nothing but a call to the store that
  // may be under way (a second at most).
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  // A stall whose line waits for answers.
  struct Inquiry {
    Stall stall{};
    std::map<int, std::int64_t> questions{};  // rank in the job → its number
    std::map<int, std::string> activities{};
    Deadline deadline;
  };

  void run();
  void turn();
  Deadline due() const;
  // What happened on the store until `due`: a key, or nothing.
  std::optional<std::string> wait_for_key(Deadline due);
  void handle(const std::string& key);
  void take_answers(const std::string& key);
  void open_inquiry(Stall stall);
  void close_inquiries();
  // Runs `call`; without a store, or once that is lost, does nothing.
  template <class Call>
  void with_store(const Call& call);

  const std::shared_ptr<Recorder> recorder_;
  std::shared_ptr<Store> store_;  // null once it is lost
  const WatchdogOptions options_;
  StallWatch stalls_;
  std::vector<Inquiry> inquiries_;
  std::int64_t next_request_ = 1;
  std::int64_t next_question_ = 1;
  Cancellation ended_;
  std::thread thread_;
};

}  // namespace lockstep
