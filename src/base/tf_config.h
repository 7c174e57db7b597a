// TF_CONFIG: the variable in which TensorFlow describes the cluster and this
// worker's place in it.
//
//     TF_CONFIG='{"cluster": {"worker": ["a:2222", "b:2222"]},
//                 "task": {"type": "worker", "index": 1}}'
//
// Threads: any thread on which the lookup may run.
// Errors:  InvalidArgument saying what is wrong and what is expected, for text
//          that is not JSON or not of this shape, and for values that
//          contradict RANK, WORLD_SIZE and the like.
// Source:  TensorFlow's guide "Multi-worker training with Keras",
//          tf.distribute.cluster_resolver.TFConfigClusterResolver.
#pragma once

#include <optional>
#include <string>

#include "src/base/environment.h"

namespace lockstep {

// Ranks follow the order of the lists: first "chief", if present, then
// "worker".
struct TfConfig {
  int rank = 0;
  int world_size = 1;
  // The address of rank 0, "host:port", where the ranks rendezvous.
  std::string first_address;
};

// Returns nothing when TF_CONFIG is unset or names no cluster.
std::optional<TfConfig> read_tf_config(const EnvironmentLookup& lookup);
// Reads this process's environment, which must not change during the call.
std::optional<TfConfig> read_tf_config();

}  // namespace lockstep
