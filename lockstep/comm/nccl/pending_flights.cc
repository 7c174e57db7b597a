#include "lockstep/comm/nccl/pending_flights.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {

PendingFlights::Pointer PendingFlights::find(std::uint64_t ticket) const {
  const auto found = flights_.find(ticket);
  return found == flights_.end() ? nullptr : found->second;
}

const Operation* PendingFlights::first() const {
  return flights_.empty() ? nullptr : &flights_.begin()->second->operation;
}

bool PendingFlights::all_launched() const {
  return std::ranges::all_of(
      flights_, [](const auto& flight) { return flight.second->launched; });
}

std::vector<int> PendingFlights::missing(std::uint64_t ticket) const {
  const Pointer flight = find(ticket);
  if (!flight) return {};
  if (is_point_to_point(flight->operation.kind))
    return {flight->operation.peer};
  return flight->check ? flight->check->missing() : std::vector<int>{};
}

// The recorder learns of the backend only after its first start().
bool PendingFlights::is_done(NcclFlight& flight,
                             const GroupRecorder* recorder) const {
  if (flight.operation.record != kNotRecorded && recorder == nullptr)
    return false;
  if (flight.check &&
      !flight.check->passed(flight.operation, place_.identity.rank,
                            place_.identity.name))
    return false;
  return flight.launched && (flight.capture != 0 || flight.ends.happened());
}

bool PendingFlights::complete(GroupRecorder* recorder) {
  const std::size_t before = flights_.size();
  for (auto next = flights_.begin(); next != flights_.end();) {
    NcclFlight& flight = *next->second;
    if (!is_done(flight, recorder)) {
      ++next;
      continue;
    }
    if (recorder != nullptr) recorder->completed(flight.operation.record);
    next = flights_.erase(next);
  }
  return flights_.size() < before;
}

void PendingFlights::check_deadlines() const {
  for (const auto& [ticket, flight] : flights_)
    if (flight->deadline.expired())
      throw Timeout(describe_timeout(*flight, place_));
}

void PendingFlights::failed(GroupRecorder* recorder,
                            const std::exception_ptr& error) const {
  if (recorder == nullptr) return;
  for (const auto& [ticket, flight] : flights_)
    recorder->failed(flight->operation.record, error);
}

void PendingFlights::settle() const noexcept {
  for (const auto& [ticket, flight] : flights_)
    if (flight->check) flight->check->settle();
}

}  // namespace lockstep
