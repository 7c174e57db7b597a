// The thread that warns when this rank waits too long: it names the missing
// ranks and what they are doing instead.
//
// It checks the recorder when an operation's timeout may have ended, and
// otherwise waits on the job's store, where other ranks ask what this rank is
// doing and the launcher asks for its record (see src/store/record_request.h).
// It refers to groups and backends only through weak pointers.
//
// Threads: any thread except its own constructs and destroys it.
// Errors:  SystemError from the constructor when the process is out of threads
//          or descriptors. If the store is lost, it continues without answers.
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

#include "lockstep/base/deadline.h"
#include "lockstep/store/store.h"
#include "src/comm/diagnosis/recorder.h"
#include "src/comm/diagnosis/stall_watch.h"

namespace lockstep {

struct WatchdogOptions {
  // How long an operation may wait before the watchdog warns.
  std::chrono::duration<double> timeout = std::chrono::seconds(10);
  // How long the watchdog waits for the missing ranks' answers.
  std::chrono::duration<double> patience_for_answers = std::chrono::seconds(1);
  // Receives the lines; if empty, they are warnings in the log.
  std::function<void(std::string_view)> warn{};
};

class Watchdog {
 public:
  Watchdog(std::shared_ptr<Recorder> recorder, std::shared_ptr<Store> store,
           WatchdogOptions options);
  // Joins its thread, which may have to finish a call to the store (at most a
  // second).
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
  // Waits until `due` for a key of the store; empty if none was set.
  std::optional<std::string> wait_for_key(Deadline due);
  void handle(const std::string& key);
  void take_answers(const std::string& key);
  void open_inquiry(Stall stall);
  void close_inquiries();
  // Runs `call`; does nothing without a store, or once it is lost.
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
