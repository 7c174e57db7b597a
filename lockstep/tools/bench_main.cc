// lockstep-bench: one rank of `lockstep bench`. The launcher starts it with the
// flags that the user gave to the command; under mpirun or another launcher it
// takes the place of the command.
//
// Exit codes: 0 when all was measured and every result was right, 2 for flags
// or environment variables that cannot work, 1 for everything else.
#include <csignal>
#include <exception>
#include <iostream>
#include <new>
#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/settings.h"
#include "lockstep/launch/cpu_share.h"
#include "lockstep/tools/bench_rank.h"

namespace lockstep {
namespace {

constexpr int kFailed = 1;
constexpr int kUsageError = 2;

int complain(const std::string& who, const std::string& what, int code) {
  std::cerr << "lockstep-bench" + who + ": " + what + "\n" << std::flush;
  return code;
}

int main_of(std::span<const char* const> arguments) {
  std::string who;
  std::optional<BenchOptions> options;
  try {
    const Settings settings = Settings::from_environment();
    const int ranks = settings.world_size.value_or(1);
    if (ranks > 1)
      who = " on rank " + std::to_string(settings.rank.value_or(0)) + " of " +
            std::to_string(ranks);
    options = parse_bench_options(
        arguments, {.cores = usable_cores(), .world_size = ranks});
  } catch (const std::exception& error) {
    return complain(who, error.what(), kUsageError);
  }
  try {
    run_bench_rank(*options);
  } catch (const InvalidArgument& error) {
    return complain(who, error.what(), kUsageError);
  } catch (const std::bad_alloc&) {
    return complain(who,
                    "there is no memory for buffers of that size; take "
                    "smaller --bytes or fewer ranks",
                    kFailed);
  } catch (const std::exception& error) {
    return complain(who, error.what(), kFailed);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  // A reader that is gone is an error of the call that meets it.
  std::signal(SIGPIPE, SIG_IGN);
  return lockstep::main_of(
      std::span<const char* const>(arguments, static_cast<std::size_t>(count))
          .subspan(1));
}
