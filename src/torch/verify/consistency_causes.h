// The causes that ConsistencyReport names for wrong rows: its prose alone.
//
// Threads: any.
// Errors:  none.
#pragma once

#include <string>
#include <vector>

#include "lockstep/torch/consistency.h"

namespace lockstep {

// As in ConsistencyVerdict.
struct ConsistencyCause {
  std::string where;
  std::string likely;
  std::string next;
};

// Of replicas that differ before the first step, and before it once the module
// is wrapped.
ConsistencyCause initial_weights_differ(const ReplicaDifference& difference);
ConsistencyCause initial_buffers_differ(const ReplicaDifference& difference);
ConsistencyCause wrapped_weights_differ(const ReplicaDifference& difference);

// Of ranks that are equal but should not be; `ranks` as equal_ranks() names
// them.
ConsistencyCause same_samples(const std::string& ranks);
ConsistencyCause same_outputs(const std::string& ranks);
ConsistencyCause same_loss(const std::string& ranks);
ConsistencyCause same_gradients(const std::string& ranks);
ConsistencyCause same_reduced_gradients(const std::string& ranks);
// The same as `cause`, if the values are not finite on some rank.
ConsistencyCause diverged(const ConsistencyCause& cause);

// Of ranks that differ but should not.
ConsistencyCause other_samples();
// Which gradients no rank has reduced: none, the one that differs, or all.
enum class Unreduced { kNone, kThis, kAll };
ConsistencyCause reduced_gradients_differ(const ReplicaDifference& difference,
                                          Unreduced unreduced);
ConsistencyCause weights_differed_before(const ReplicaDifference& difference);
// `unchanged`: the ranks of `ranks` on which the step changed nothing.
ConsistencyCause updated_weights_differ(const ReplicaDifference& difference,
                                        const std::vector<int>& unchanged,
                                        int ranks);
ConsistencyCause buffers_differ(const ReplicaDifference& difference);

}  // namespace lockstep
