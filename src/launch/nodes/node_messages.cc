#include "src/launch/nodes/node_messages.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "src/base/printable.h"

namespace lockstep {

std::string lost_key(std::string_view id) {
  return fmt::format("nodes/lost/{}", id);
}

RoundKeys::RoundKeys(int round) : prefix_(fmt::format("nodes/{}/", round)) {}

std::string RoundKeys::card(int index) const {
  return fmt::format("{}card/{}", prefix_, index);
}

std::string RoundKeys::done(int group_rank) const {
  return fmt::format("{}done/{}", prefix_, group_rank);
}

std::string RoundKeys::ended(int group_rank) const {
  return fmt::format("{}ended/{}", prefix_, group_rank);
}

std::string RoundKeys::read(int group_rank) const {
  return fmt::format("{}read/{}", prefix_, group_rank);
}

void refuse_message(std::string_view text) {
  constexpr std::size_t kShown = 60;
  throw InvalidArgument(fmt::format(
      "another launcher sent \"{}\", which this version does not understand\n"
      "  next:    install the same version of Lockstep on every host",
      printable(text.substr(0, kShown))));
}

}  // namespace lockstep
