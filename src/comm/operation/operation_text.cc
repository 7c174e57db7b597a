#include "src/comm/operation/operation_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>

#include "src/store/host_address.h"

namespace lockstep {

// A rank that ended well has nothing to say in its log.
std::string advice_after(Departure departure, const GroupIdentity& identity,
                         int rank) {
  const bool ended_well = departure == Departure::kInGoodOrder;
  std::string text;
  if (departure != Departure::kInError)
    text = fmt::format(
        "\n  likely:  {} made fewer steps than this rank, as with fewer "
        "batches{}, and then ended",
        identity.describe(rank), ended_well ? "" : ", or failed");
  text += "\n  next:    ";
  if (!ended_well)
    text += fmt::format("read rank {}'s log; ", identity.rank_in_job(rank));
  if (departure != Departure::kInError)
    text += "give every rank as many steps, or see join(); ";
  return text + "the group is unusable, make a new one";
}

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
