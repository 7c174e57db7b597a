// The steps of the ranks of a host, in memory that they share with `lockstep
// status`. docs/formats/running_jobs.md describes the bytes.
//
// Each rank has a slot with its last steps. A rank writes with a few relaxed
// stores per step, without locks or system calls. A reader copies the slot and
// keeps only those steps that the rank cannot have overwritten meanwhile.
//
// Threads: see each class.
// Errors:  SystemError when the file cannot be made or opened; InvalidArgument
//          when it is not such a file, or has no such slot.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "src/net/file_descriptor.h"

namespace lockstep {

// What a rank does while it does not wait for other ranks.
enum class StepPhase { kUnknown, kData, kCompute };

// "", "data", "compute".
std::string_view name_of(StepPhase phase);

// Makes the file with `slots` empty slots, and reserves its memory: a write to
// memory that a full file system cannot provide would end a rank by SIGBUS. The
// file must not exist.
FileDescriptor create_step_memory(const std::string& path, int slots);

// Whether the file begins as create_step_memory() makes it.
bool is_step_memory(const FileDescriptor& file);

// A rank's own slot.
//
// Threads: enters_wait(), leaves_wait() and the three about the program: any
//          thread. All others: one thread at a time.
class StepWriter {
 public:
  using Clock = std::chrono::steady_clock;

  // Empties the slot.
  StepWriter(const std::string& path, int slot);
  ~StepWriter();
  StepWriter(const StepWriter&) = delete;
  StepWriter& operator=(const StepWriter&) = delete;

  // The program has its batch; the time since data_wanted() was spent on data,
  // but for the waits. `waited` as in step_done(). A second call before the
  // next data_wanted() adds nothing.
  void data_ready(std::chrono::nanoseconds waited);
  // Time on data begins, if the program calls data_ready() later; nothing is
  // shown until then.
  void begin_data(std::chrono::nanoseconds waited);
  // The program begins to get the next batch.
  void data_wanted(std::chrono::nanoseconds waited);
  // A step of `samples` samples has ended. `waited`: the time that this process
  // has spent waiting for other ranks so far. A call beside another one, as of
  // two models on two threads, does nothing.
  void step_done(std::int64_t samples, std::chrono::nanoseconds waited);

  // A thread waits for other ranks, or waits no longer.
  void enters_wait() noexcept;
  void leaves_wait() noexcept;

  // From now on the program reports its steps, and Lockstep counts none.
  void report_by_program() { reports_.fetch_add(1); }
  // Lockstep counts them again once every report has ended.
  void end_report_by_program() { reports_.fetch_sub(1); }
  bool reported_by_program() const { return reports_.load() > 0; }

 private:
  struct Slot;

  std::byte* file_ = nullptr;
  std::size_t bytes_ = 0;
  Slot* slot_ = nullptr;
  std::atomic<int> reports_{0};  // of the program
  std::uint64_t steps_ = 0;
  std::uint64_t samples_ = 0;
  std::chrono::nanoseconds in_data_{};
  Clock::time_point data_since_{};
  std::chrono::nanoseconds waited_before_data_{};
  std::atomic_flag busy_;
};

// The recent steps of a rank: the time from the end of one to the end of
// another, and what happened between.
struct StepWindow {
  int steps = 1;
  std::uint64_t samples = 0;
  // Totals. The rest of `time` is computing.
  std::chrono::duration<double> time{};
  std::chrono::duration<double> data{};
  std::chrono::duration<double> waited{};
  // Of one step, the median: without its waits, and its data.
  std::chrono::duration<double> own_per_step{};
  std::chrono::duration<double> data_per_step{};
};

// A rank's slot, as a reader sees it.
struct RankSteps {
  std::uint64_t steps = 0;  // that have ended
  StepPhase phase = StepPhase::kUnknown;
  bool waits = false;  // for other ranks, at this moment
  // When the last step ended; steady_clock is the same in all processes of a
  // host. Nothing before the first step.
  std::optional<std::chrono::steady_clock::time_point> last{};
  std::optional<StepWindow> window{};  // nothing before the second step
};

// Reads a slot; nothing if the file has no such slot, is of another version or
// cannot be read. Any bytes give an answer; no answer is trusted.
std::optional<RankSteps> read_rank_steps(const FileDescriptor& file, int slot);

}  // namespace lockstep
