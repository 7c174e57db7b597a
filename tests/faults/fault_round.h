// One fault, injected into ranks that are processes: each rank's output, and
// whether it was right.
//
// Threads: one thread at a time.
// Errors:  complaints are collected, never thrown. An error that RankProcesses
//          throws, because a rank does not print an expected line, is a
//          complaint too.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/comm/testing/rank_processes.h"

namespace lockstep {

// An error that a rank's wait threw.
struct RankError {
  std::string type;     // "PeerFailure"
  int rank = -1;        // the culprit, or -1
  std::int64_t at = 0;  // nanoseconds of the monotonic clock
  std::string message;
};

struct RoundSetting {
  std::string backend;
  int ranks = 3;
  unsigned seed = 1;
  std::vector<std::string> variables{};  // "NAME=value"
};

class FaultRound {
 public:
  // Long: it only bounds a hang, which is a failure.
  static constexpr std::chrono::seconds kTimeout{60};

  // Starts the ranks with the case `name` of lockstep_fault_rank.
  FaultRound(const RoundSetting& setting, const std::string& name);

  RankProcesses& processes() { return *processes_; }
  int ranks() const { return processes_->size(); }

  // Waits until every rank has printed a line that begins with `text`.
  void all_say(const std::string& text);
  // Waits for the `number`th error of rank `rank`.
  RankError error_of(int rank, int number = 0);

  // Adds a complaint unless `right`.
  void expect(bool right, const std::string& complaint);
  // Expects that rank `rank` exits like a rank that got an error and cleaned
  // up, and that its results without an error were right.
  void expect_clean_end(int rank);
  // Records the time from `moment` to the error, for the table.
  void note_time(const RankError& error, std::int64_t moment);

  // Ends the processes and returns the complaints: "" without complaints.
  std::string finish();

  const std::string& complaints() const { return complaints_; }
  const std::vector<double>& milliseconds() const { return milliseconds_; }
  // The number of operations whose results the ranks checked.
  std::size_t checked() const { return checked_; }

 private:
  void read_results(const std::string& line);

  const RoundSetting setting_;
  std::unique_ptr<RankProcesses> processes_;
  std::string complaints_;
  std::vector<double> milliseconds_;
  std::size_t checked_ = 0;
};

// The monotonic clock's nanoseconds, as ranks print them.
std::int64_t monotonic_now();

// Runs `steps`; an error that a step throws becomes a complaint.
void attempt(FaultRound& round, const std::function<void()>& steps);

}  // namespace lockstep
