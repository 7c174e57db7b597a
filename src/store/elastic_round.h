// What the launcher and the workers of a job that re-forms in place tell each
// other: keys of the job's store, below "elastic/". See docs/design/launch.md.
//
// A job has rounds, numbered from 1. The launcher sets the key of a round once,
// to its members; a key that exists is never changed.
//
// Threads: any thread.
// Errors:  InvalidArgument for a text that encode() did not make.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/store/store.h"

namespace lockstep {

struct ElasticRound {
  int number = 0;
  // Ids of workers, by rank.
  std::vector<int> members{};

  friend bool operator==(const ElasticRound&, const ElasticRound&) = default;
};

// The variable with a worker's id, which no other worker of the job has or had.
inline constexpr const char* kElasticIdVariable = "LOCKSTEP_ELASTIC_ID";

// The launcher sets it to the reason why no further round follows.
inline constexpr const char* kElasticOver = "elastic/over";

// A member of a round sets it, to its error, before it gives up because no
// further round has begun in time: a rank is stopped or hangs, and lives.
inline constexpr const char* kElasticStalled = "elastic/stalled";

std::string elastic_round_key(int number);
// Worker `id` sets it once it waits for a round.
std::string elastic_ready_key(int id);
// Worker `id` sets it once it has the job's state.
std::string elastic_joined_key(int id);
// Whether it has; waits for no worker.
bool has_joined(Store& store, int id, Deadline deadline);
// Rank 0 of round `number` sets it once the round's group has formed.
std::string elastic_formed_key(int number);
// How a round has ended: with the training, once every member has come to its
// end; or because a member died before.
inline constexpr std::string_view kRoundComplete = "complete";
inline constexpr std::string_view kRoundFailed = "failed";
// Records `how` round `number` ends, unless that is recorded already; returns
// what is recorded. So the launcher and all members agree on it.
std::string end_elastic_round(Store& store, int number, std::string_view how,
                              Deadline deadline);
// What is recorded; empty if nothing is.
std::string how_elastic_round_ended(Store& store, int number,
                                    Deadline deadline);
// What the keys of a round's rendezvous and groups begin with.
std::string elastic_prefix(int number);

// The value of a round's key: the members.
std::string encode(const ElasticRound& round);
ElasticRound decode_elastic_round(int number, std::string_view text);

}  // namespace lockstep
