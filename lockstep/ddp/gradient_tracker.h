// Which bucket is complete? Gradients arrive one by one during the backward
// pass; the tracker says when buckets may be reduced.
//
// Buckets are handed out strictly in the plan's order, each once a step: all
// ranks must start the same reductions in the same order, and gradients need
// not arrive in the same order everywhere. A complete bucket therefore waits
// for those before it.
//
// A gradient is final when it has arrived as often as is expected: once, unless
// expect() says otherwise.
//
// An arrival costs a few array accesses and allocates nothing.
//
// Threads: single-threaded; the reducer calls it under its own lock.
// Errors:  none to handle; a parameter outside the plan is InternalError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/ddp/bucket_plan.h"

namespace lockstep {

class GradientTracker {
 public:
  // How often gradients arrive in a step, by parameter.
  using Counts = std::vector<std::uint32_t>;
  static constexpr std::uint32_t kUnknown = 0xffffffff;

  enum class Status {
    kFinal,     // the last that was expected
    kPartial,   // one of several, with more to come
    kRepeated,  // more often than expected, before its bucket was handed out
    // More often than expected, when its bucket had been handed out: what was
    // or is being reduced is not what the caller now has.
    kRepeatedTooLate,
  };

  struct Arrival {
    Status status = Status::kFinal;
    // Buckets first_bucket … first_bucket + bucket_count - 1 may be reduced
    // now. Only final arrivals hand out buckets.
    std::size_t first_bucket = 0;
    std::size_t bucket_count = 0;
  };

  // Starts in a step in which nothing has arrived; every gradient is expected
  // once. Keeps no reference to `plan`.
  explicit GradientTracker(const BucketPlan& plan);

  // From the next step on. A parameter that is expected 0 times holds no bucket
  // back; one whose count is kUnknown holds its own back for good.
  void expect(Counts counts);

  // Forgets every arrival and hands out buckets from 0 again: at once those
  // that wait for nothing.
  Arrival begin_step();

  // Takes note that the gradient of `parameter` has arrived.
  Arrival arrived(std::size_t parameter);

  // Whether every bucket was handed out.
  bool complete() const { return launched_ == awaited_.size(); }

  // Buckets handed out in this step: 0 … launched() - 1.
  std::size_t launched() const { return launched_; }

  // The parameters that have not arrived as often as expected, or, where that
  // is unknown, not at all; by ascending index.
  std::vector<std::size_t> missing() const;

  // How often each has arrived in this step.
  const Counts& counts() const { return counts_; }

  // All parameters: those that have arrived in this step in the order of their
  // last arrivals, then the others. A permutation that plan_buckets() takes.
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
