// The kinds of faults: each is injected once, at a moment and into a rank that
// the seed chooses, and every survivor must raise the right error.
//
// Threads: one at a time.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct Injection {
  std::string backend;
  unsigned seed = 1;
};

struct Outcome {
  std::string complaints{};            // "" when all survived as they must
  std::vector<double> milliseconds{};  // until each survivor had its error
};

// kill -9. Everybody else gets PeerFailure naming the rank.
Outcome inject_kill(const Injection& injection);

// The same of rank 0, which serves the job's store.
Outcome inject_kill_of_store(const Injection& injection);

// SIGSTOP. Everybody else gives up naming the rank, and has its memory to
// itself when the rank goes on.
Outcome inject_stop(const Injection& injection);

// How many pairs of different collectives there are.
int count_pairs();

// Of each of the pairs, by number, ranks call one and the others the other: all
// get a Mismatch that names both.
Outcome inject_mismatch(const Injection& injection,
                        const std::vector<int>& pairs, std::size_t& survived);

// The store dies: the group works on, and who needs the store gets a
// NetworkError, or PeerFailure naming a rank that did.
Outcome inject_store_death(const Injection& injection);

// The same while groups form. Nobody waits for it.
Outcome inject_store_death_in_forming(const Injection& injection);

}  // namespace lockstep
