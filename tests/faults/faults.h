// The kinds of faults. The seed chooses the moment and the rank of each fault,
// and every survivor must raise the right error.
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
  std::string complaints{};            // "" when all ranks behaved as expected
  std::vector<double> milliseconds{};  // until each survivor had its error
  std::size_t checked = 0;             // operations whose results were checked
};

// kill -9. Every other rank gets PeerFailure naming the killed rank.
Outcome inject_kill(const Injection& injection);

// The same for rank 0, which serves the job's store.
Outcome inject_kill_of_store(const Injection& injection);

// SIGSTOP. Every other rank gives up naming the stopped rank, and its memory is
// private when that rank continues.
Outcome inject_stop(const Injection& injection);

// SIGSTOP at a random moment, `rounds` times in one job: the others time out,
// change and free their memory, and only then does the rank continue. Every
// operation that ends without an error, on any rank, must have the right
// elements.
Outcome inject_reuse(const Injection& injection, int rounds);

// SIGSTOP of rank 1 while rank 0 uses `bytes` bytes of its heap. The times run
// from the end of rank 0's deadline to its error, and its memory must not grow
// by more than the operation's memory.
Outcome inject_stop_of_laden(const Injection& injection, std::size_t bytes);

// The number of pairs of different collectives.
int count_pairs();

// For each pair, given by number, some ranks call one collective and the others
// the other: all get a Mismatch that names both.
Outcome inject_mismatch(const Injection& injection,
                        const std::vector<int>& pairs, std::size_t& survived);

// The store dies. The group continues to work, and a rank that needs the store
// gets a NetworkError, or PeerFailure naming a rank that got one.
Outcome inject_store_death(const Injection& injection);

// The same while groups form. No rank waits for the store.
Outcome inject_store_death_in_forming(const Injection& injection);

}  // namespace lockstep
