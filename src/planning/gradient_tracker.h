// Tracks which buckets are complete. Gradients arrive one by one during the
// backward pass; the tracker tells when buckets may be reduced.
//
// The tracker hands out buckets strictly in the plan's order, each once per
// step. All ranks must start the same reductions in the same order, but
// gradients may arrive in a different order on each rank. A complete bucket
// therefore waits for the buckets before it.
//
// A gradient is final when it has arrived as often as expected: once, unless
// expect() sets another count.
//
// An arrival costs a few array accesses and allocates nothing.
//
// Threads: single-threaded; the reducer calls it under its own lock.
// Errors:  none to handle; a parameter outside the plan is InternalError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/planning/bucket_plan.h"

namespace lockstep {

class GradientTracker {
 public:
  // How often gradients arrive in a step, by parameter.
  using Counts = std::vector<std::uint32_t>;
  static constexpr std::uint32_t kUnknown = 0xffffffff;

  enum class Status {
    kFinal,     // the last expected arrival
    kPartial,   // one of several; more will come
    kRepeated,  // one too many, before its bucket was handed out
    // One too many, after its bucket was handed out: the reduced gradient
    // differs from the caller's.
    kRepeatedTooLate,
  };

  struct Arrival {
    Status status = Status::kFinal;
    // Buckets first_bucket … first_bucket + bucket_count - 1 may be reduced
    // now. Only final arrivals hand out buckets.
    std::size_t first_bucket = 0;
    std::size_t bucket_count = 0;
  };

  // Starts a step without arrivals; every gradient is expected once. Keeps no
  // reference to `plan`.
  explicit GradientTracker(const BucketPlan& plan);

  // Applies from the next step on. A parameter that is expected 0 times delays
  // no bucket; a parameter whose count is kUnknown blocks its bucket.
  void expect(Counts counts);

  // Forgets every arrival and hands out buckets from 0 again: at once those
  // that expect no gradient.
  Arrival begin_step();

  // Records that the gradient of `parameter` has arrived.
  Arrival arrived(std::size_t parameter);

  // Whether every bucket was handed out.
  bool complete() const { return launched_ == awaited_.size(); }

  // Buckets handed out in this step: 0 … launched() - 1.
  std::size_t launched() const { return launched_; }

  // The parameters that have not arrived as often as expected (with an unknown
  // count: at all), by ascending index.
  std::vector<std::size_t> missing() const;

  // How often each parameter has arrived in this step.
  const Counts& counts() const { return counts_; }

  // All parameters: first those that have arrived in this step, in the order of
  // their last arrivals, then the others. plan_buckets() takes this
  // permutation.
  std::vector<std::size_t> arrival_order() const;

 private:
  Arrival hand_out();

  std::vector<std::size_t> bucket_of_;  // by parameter
  Counts expected_;
  std::vector<std::size_t> to_come_;  // parameters expected at all, by bucket
  std::vector<std::size_t> awaited_;  // of those, the ones that are not final
  Counts counts_;
  std::vector<std::uint64_t> turns_;  // of the last arrival, by parameter
  std::uint64_t turn_ = 0;
  std::size_t launched_ = 0;
};

}  // namespace lockstep
