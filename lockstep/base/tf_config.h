// TF_CONFIG: how TensorFlow tells a worker where it stands among all.
//
//     TF_CONFIG='{"cluster": {"worker": ["a:2222", "b:2222"]},
//                 "task": {"type": "worker", "index": 1}}'
//
// Threads: a pure function, but for what the lookup does.
// Errors:  InvalidArgument saying what is wrong and what it must be, for text
//          that is no JSON, or not of this shape, and for one that contradicts
//          RANK, WORLD_SIZE and the like.
// Source:  TensorFlow's guide "Multi-worker training with Keras",
//          tf.distribute.cluster_resolver.TFConfigClusterResolver.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/environment.h"

namespace lockstep {

// Ranks are those of "chief", where there is one, and then of "worker", in the
// order in which they are listed.
struct TfConfig {
  int rank = 0;
  int world_size = 1;
  // Of rank 0, where the ranks find each other: "host:port".
  std::string first_address;
};

// Nothing when TF_CONFIG is not set, or names no cluster.
std::optional<TfConfig> read_tf_config(const EnvironmentLookup& lookup);
// The same of this process's environment, which must not change meanwhile.
std::optional<TfConfig> read_tf_config();

}  // namespace lockstep
