#include "src/store/elastic_round.h"

#include <fmt/format.h>

#include <charconv>

#include "lockstep/base/error.h"
#include "src/store/peek.h"

namespace lockstep {
namespace {

std::string elastic_end_key(int number) {
  return fmt::format("elastic/end/{}", number);
}

}  // namespace

std::string elastic_round_key(int number) {
  return fmt::format("elastic/round/{}", number);
}

std::string elastic_ready_key(int id) {
  return fmt::format("elastic/ready/{}", id);
}

std::string elastic_joined_key(int id) {
  return fmt::format("elastic/joined/{}", id);
}

std::string elastic_formed_key(int number) {
  return fmt::format("elastic/formed/{}", number);
}

bool has_joined(Store& store, int id, Deadline deadline) {
  return !peek(store, elastic_joined_key(id), deadline).empty();
}

std::string how_elastic_round_ended(Store& store, int number,
                                    Deadline deadline) {
  return to_text(peek(store, elastic_end_key(number), deadline));
}

std::string end_elastic_round(Store& store, int number, std::string_view how,
                              Deadline deadline) {
  return to_text(store.compare_and_set(elastic_end_key(number), std::nullopt,
                                       to_bytes(how), deadline));
}

std::string elastic_prefix(int number) {
  return fmt::format("elastic/{}/", number);
}

std::string encode(const ElasticRound& round) {
  return fmt::format("{}", fmt::join(round.members, " "));
}

ElasticRound decode_elastic_round(int number, std::string_view text) {
  ElasticRound round{.number = number};
  const char* const end = text.data() + text.size();
  for (const char* place = text.data(); place != end;) {
    int id = 0;
    const auto [stop, error] = std::from_chars(place, end, id);
    if (error != std::errc() || (stop != end && *stop != ' '))
      throw InvalidArgument(fmt::format(
          "the store holds no round of a job: \"{}\"; a launcher of another "
          "version may serve it",
          text));
    round.members.push_back(id);
    place = stop == end ? end : stop + 1;
  }
  return round;
}

}  // namespace lockstep
