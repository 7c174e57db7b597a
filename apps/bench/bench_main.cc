// lockstep-bench: one rank of `lockstep bench`. The launcher starts it with the
// flags that the user gave to the command; under mpirun or another launcher it
// replaces the command.
//
// Exit codes: 0 when everything was measured and every result was right, 2 for
// invalid flags or environment variables, 1 for all other errors.
#include <new>

#include "apps/bench/bench_rank.h"
#include "apps/job/rank_program.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

int run(const BenchOptions& options, const Settings& settings) try {
  run_bench_rank(options, settings);
  return 0;
} catch (const std::bad_alloc&) {
  throw Error(
      "there is no memory for buffers of that size; take smaller --bytes or "
      "fewer ranks");
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  return lockstep::run_rank_program(
      {.name = "lockstep-bench",
       .library = "no LibTorch",
       .prepare =
           lockstep::prepare_by(lockstep::parse_bench_options, lockstep::run),
       .refused = lockstep::kExitUsage},
      count, arguments);
}
