#include "src/launch/nodes/node_messages.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "src/base/printable.h"

namespace lockstep {

std::string came_key(int node_rank) {
  return fmt::format("nodes/came/{}", node_rank);
}

std::string read_key(std::string_view id) {
  return fmt::format("nodes/read/{}", id);
}

RoundKeys::RoundKeys(int round) : prefix_(fmt::format("nodes/{}/", round)) {}

std::string RoundKeys::card(int index) const {
  return fmt::format("{}card/{}", prefix_, index);
}

std::string RoundKeys::late_plan(std::string_view id) const {
  return fmt::format("{}plan/{}", prefix_, id);
}

std::string RoundKeys::refusal(std::string_view id) const {
  return fmt::format("{}refusal/{}", prefix_, id);
}

std::string RoundKeys::done(std::string_view id) const {
  return fmt::format("{}done/{}", prefix_, id);
}

std::string RoundKeys::ended(std::string_view id) const {
  return fmt::format("{}ended/{}", prefix_, id);
}

std::string RoundKeys::lost(std::string_view id) const {
  return fmt::format("{}lost/{}", prefix_, id);
}

bool replaces(const RoundFault& fault, const RoundFault& other) {
  if (fault.is_final != other.is_final) return fault.is_final;
  if (other.is_of_launcher) return false;
  return fault.kind > other.kind;
}

void report_fault(Store& store, const std::string& key, const RoundFault& fault,
                  Deadline deadline) {
  const Bytes mine = to_bytes(encode(fault));
  Bytes there = store.compare_and_set(key, std::nullopt, mine, deadline);
  while (there != mine && replaces(fault, decode<RoundFault>(to_text(there))))
    there = store.compare_and_set(key, there, mine, deadline);
}

void refuse_message(std::string_view text) {
  constexpr std::size_t kShown = 60;
  throw InvalidArgument(fmt::format(
      "another launcher sent \"{}\", which this version does not understand\n"
      "  next:    install the same version of Lockstep on every host",
      printable(text.substr(0, kShown))));
}

}  // namespace lockstep
