#include "src/comm/operation/operation_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>

#include "src/store/host_address.h"

namespace lockstep {

std::string describe_timeout_of(std::string_view call,
                                Deadline::Clock::time_point begun,
                                const GroupIdentity& identity,
                                std::string_view detail) {
  using std::chrono::system_clock;
  const auto waited = Deadline::Clock::now() - begun;
  const auto begun_at =
      system_clock::now() -
      std::chrono::duration_cast<system_clock::duration>(waited);
  return fmt::format(
      "{} timed out after {:.1f} s (begun at {:%H:%M:%S}) on rank {} of {} on "
      "{} (group \"{}\"{})",
      call, std::chrono::duration<double>(waited).count(),
      fmt::localtime(system_clock::to_time_t(begun_at)), identity.rank,
      identity.size, own_host_name(), identity.name, detail);
}

}  // namespace lockstep
