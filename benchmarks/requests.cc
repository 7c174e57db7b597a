#include "benchmarks/requests.h"

#include <stdexcept>

namespace lockstep {

Requests::Requests(const std::string& prefix, int rank)
    : pipe_(prefix + "." + std::to_string(rank)) {
  if (!pipe_)
    throw std::runtime_error("cannot open " + prefix + "." +
                             std::to_string(rank));
}

std::optional<std::string> Requests::next() {
  std::string line;
  if (!std::getline(pipe_, line)) return std::nullopt;
  return line;
}

}  // namespace lockstep
