// lockstep-bench: one rank of `lockstep bench`. The launcher starts it with the
// flags that the user gave to the command; under mpirun or another launcher it
// replaces the command.
//
// Exit codes: 0 when everything was measured and every result was right, 2 for
// invalid flags or environment variables, 1 for all other errors.
#include <functional>
#include <new>
#include <span>

#include "lockstep/base/error.h"
#include "src/tools/bench/bench_rank.h"
#include "src/tools/job/rank_program.h"

namespace lockstep {
namespace {

void run(const BenchOptions& options, const Settings& settings) {
  try {
    run_bench_rank(options, settings);
  } catch (const std::bad_alloc&) {
    throw Error(
        "there is no memory for buffers of that size; take smaller --bytes or "
        "fewer ranks");
  }
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  using lockstep::BenchOptions, lockstep::RankPlace, lockstep::Settings;
  return lockstep::run_rank_program(
      {.name = "lockstep-bench",
       .library = "no LibTorch",
       .prepare = [](std::span<const char* const> typed,
                     const Settings& settings,
                     const RankPlace& place) -> lockstep::RankProgram::Job {
         const BenchOptions options =
             lockstep::parse_bench_options(typed, place);
         return [=] {
           lockstep::run(options, settings);
           return 0;
         };
       },
       .refused = lockstep::kExitUsage},
      count, arguments);
}
