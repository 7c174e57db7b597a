// Which bucket is complete? Gradients arrive one by one during the backward
// pass; the tracker says when buckets may be reduced.
//
// Buckets are handed out strictly in the plan's order, each once a step: all
// ranks must start the same reductions in the same order, and gradients need
// not arrive in the same order everywhere. A complete bucket therefore waits
// for those before it.
//
// An arrival costs a few array accesses and allocates nothing.
//
// Threads: single-threaded; the reducer calls it under its own lock.
// Errors:  none to handle; a parameter outside the plan is InternalError.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/ddp/bucket_plan.h"

namespace lockstep {

class GradientTracker {
 public:
  enum class Status {
    kFirst,     // as it should be
    kRepeated,  // a gradient arrived again before its bucket was handed out
    // A gradient arrived again when its bucket had been handed out: what was
    // or is being reduced is not what the caller now has.
    kRepeatedTooLate,
  };

  struct Arrival {
    Status status = Status::kFirst;
    // Buckets first_bucket … first_bucket + bucket_count - 1 may be reduced
    // now. Only a first arrival hands out buckets.
    std::size_t first_bucket = 0;
    std::size_t bucket_count = 0;
  };

  // Starts in a step in which nothing has arrived. Keeps no reference to
  // `plan`.
  explicit GradientTracker(const BucketPlan& plan);

  // Forgets every arrival and hands out buckets from 0 again.
  void begin_step();

  // Takes note that the gradient of `parameter` is final.
  Arrival arrived(std::size_t parameter);

  // Whether every parameter arrived, and so every bucket was handed out.
  bool complete() const { return arrival_order_.size() == bucket_of_.size(); }

  // Buckets handed out in this step: 0 … launched() - 1.
  std::size_t launched() const { return launched_; }

  // The parameters that have not arrived in this step, by ascending index.
  std::vector<std::size_t> missing() const;

  // The parameters in the order of their first arrival in this step. Once
  // complete, a permutation that plan_buckets() takes. Valid until the next
  // call of arrived() or begin_step().
  std::span<const std::size_t> arrival_order() const { return arrival_order_; }

 private:
  std::vector<std::size_t> bucket_of_;      // by parameter
  std::vector<std::size_t> bucket_sizes_;   // parameters, by bucket
  std::vector<std::size_t> awaited_;        // parameters to come, by bucket
  std::vector<unsigned char> has_arrived_;  // by parameter
  std::vector<std::size_t> arrival_order_;
  std::size_t launched_ = 0;
};

}  // namespace lockstep
