// Plans which gradients are reduced together: parameter sizes → buckets.
//
// Reducing gradients one by one wastes time on latency; reducing them all at
// once overlaps nothing with the backward pass. So the plan gathers gradients
// into buckets in their expected order and closes a bucket once it reaches its
// cap. The first cap is small, so the first reduction starts early. Caps and
// order are those of PyTorch's compute_bucket_assignment_by_size (Li et al.,
// "PyTorch Distributed", VLDB 2020). See docs/design/planning.md.
//
// The plan is a pure function of its arguments: ranks that pass the same sizes
// and the same order get the same plan.
//
// Errors:  InvalidArgument for an order that does not name every parameter
//          once.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/base/buffer.h"

namespace lockstep {

// A parameter as the plan sees it. `elements` may be 0.
struct ParameterSize {
  std::size_t elements = 0;
  DataType type = DataType::kFloat32;
  Device device = {};
};

struct BucketPlanOptions {
  // A bucket is closed as soon as its gradients reach this many bytes; a single
  // gradient may exceed it. The first bucket of each type and device has its
  // own cap. With a cap of 0 every gradient is a bucket.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
};

struct BucketPlan {
  // A gradient.
  struct Slot {
    std::size_t parameter = 0;
    std::size_t elements = 0;
  };

  // Gradients of one data type on one device.
  struct Bucket {
    DataType type = DataType::kFloat32;
    Device device = {};
    std::vector<Slot> slots = {};
  };

  struct Place {
    std::size_t bucket = 0;
    std::size_t position = 0;  // among the bucket's slots
  };

  // In the expected order of completion, which is the order in which every rank
  // must reduce them. Every bucket has at least one slot.
  std::vector<Bucket> buckets;
  // The place of each parameter, by its index.
  std::vector<Place> places;
};

// The initial plan, before the first backward pass: gradients are expected in
// the reverse of `parameters`, which is in registration order.
BucketPlan plan_buckets(std::span<const ParameterSize> parameters,
                        const BucketPlanOptions& options = {});

// The plan for gradients expected in `order`, a permutation of the parameters'
// indices: GradientTracker::arrival_order() of a complete step, which one rank
// recorded and all ranks agreed on.
BucketPlan plan_buckets(std::span<const ParameterSize> parameters,
                        std::span<const std::size_t> order,
                        const BucketPlanOptions& options = {});

}  // namespace lockstep
