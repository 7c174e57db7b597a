#include "src/comm/shm/exchange_messages.h"

#include <string_view>

namespace lockstep {

Proof prove(const Secret& secret, Prover prover, const Challenges& challenges) {
  const std::string_view key(reinterpret_cast<const char*>(secret.data()),
                             secret.size());
  return prove(key, prover, challenges);
}

ExchangeAnswer answer_of(const Error& error) {
  if (const auto* gone = dynamic_cast<const PeerFailure*>(&error))
    return {.rank = gone->rank(), .ending = Ending::kPeerGone};
  if (dynamic_cast<const Timeout*>(&error) != nullptr)
    return {.ending = Ending::kTimedOut};
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr)
    return {.ending = Ending::kRefused};
  return {.ending = Ending::kGaveUp};
}

Bytes failure_message(const ExchangeAnswer& answer, const std::string& why) {
  constexpr std::size_t kLongest = 4096;
  Bytes message(bytes_of(answer).begin(), bytes_of(answer).end());
  const Bytes reason = to_bytes(why.substr(0, kLongest));
  message.insert(message.end(), reason.begin(), reason.end());
  return message;
}

void throw_failure(const ExchangeAnswer& answer, const std::string& text) {
  switch (answer.ending) {
    case Ending::kTimedOut:
      throw Timeout(text);
    case Ending::kRefused:
      throw InvalidArgument(text);
    case Ending::kFormed:
    case Ending::kPeerGone:
    case Ending::kGaveUp:
      break;
  }
  throw PeerFailure(answer.rank, text);
}

}  // namespace lockstep
