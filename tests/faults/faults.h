// The kinds of faults: each is injected once, at a moment and into a rank that
// the seed chooses, and every survivor must raise the right error.
//
// Threads: one thread at a time.
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
  std::size_t checked = 0;  // operations whose results were looked at
};

// kill -9. Everybody else gets PeerFailure naming the rank.
Outcome inject_kill(const Injection& injection);

// The same of rank 0, which serves the job's store.
Outcome inject_kill_of_store(const Injection& injection);

// SIGSTOP. Everybody else gives up naming the rank, and has its memory to
// itself when the rank goes on.
Outcome inject_stop(const Injection& injection);

// SIGSTOP at a random moment, `rounds` times in one job: the others time out,
// change and free their memory, and only then does the rank go on. Whatever
// ends without an error, on any rank, must have the right elements.
Outcome inject_reuse(const Injection& injection, int rounds);

// SIGSTOP of rank 1 while rank 0 has `bytes` bytes of its heap in use. The
// times are those from the end of rank 0's deadline to its error, and its
// memory must not grow by more than what the operation had.
Outcome inject_stop_of_laden(const Injection& injection, std::size_t bytes);

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
