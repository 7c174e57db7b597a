#include "src/store/record_request.h"

#include <fmt/format.h>

#include <chrono>

#include "lockstep/base/error.h"
#include "src/store/peek.h"

namespace lockstep {
namespace {

// How long a call of the store takes that waits for no rank, at most.
constexpr std::chrono::seconds kAnswers{5};

// The keys that hold counters.
constexpr std::string_view kRequests = "record/requests";
std::string questions_to(int rank) {
  return fmt::format("record/questions/{}", rank);
}
std::string answers_of(int rank) {
  return fmt::format("record/answers/{}", rank);
}

}  // namespace

std::string job_name(Store& store, std::string_view suggestion,
                     Deadline deadline) {
  const Bytes name = to_bytes(suggestion);
  return to_text(
      store.compare_and_set("record/job", std::nullopt, name, deadline));
}

std::int64_t next_request(Store& store, Deadline deadline) {
  return store.add(kRequests, 0, deadline) + 1;
}

std::int64_t next_question(Store& store, int rank, Deadline deadline) {
  return store.add(answers_of(rank), 0, deadline) + 1;
}

void answer(Store& store, int rank, std::int64_t number, std::string_view text,
            Deadline deadline) {
  store.add(answers_of(rank), 1, deadline);
  store.set(answer_key(rank, number), to_bytes(text), deadline);
  store.erase(question_key(rank, number), deadline);
}

std::string listening_key(int rank) {
  return fmt::format("record/listening/{}", rank);
}

std::string request_key(std::int64_t number) {
  return fmt::format("record/request/{}", number);
}

std::string written_key(std::int64_t number, int rank) {
  return fmt::format("record/written/{}/{}", number, rank);
}

std::string question_key(int rank, std::int64_t number) {
  return fmt::format("record/question/{}/{}", rank, number);
}

std::string answer_key(int rank, std::int64_t number) {
  return fmt::format("record/answer/{}/{}", rank, number);
}

std::int64_t ask(Store& store, int rank, Deadline deadline) {
  const std::int64_t number = store.add(questions_to(rank), 1, deadline);
  store.set(question_key(rank, number), to_bytes("?"), deadline);
  return number;
}

std::vector<int> request_records(Store& store, std::span<const int> ranks,
                                 Deadline deadline,
                                 const Cancellation* cancellation) {
  std::vector<int> listening;
  for (const int rank : ranks)
    if (!peek(store, listening_key(rank), deadline).empty())
      listening.push_back(rank);
  const std::int64_t number = store.add(kRequests, 1, deadline);
  store.set(request_key(number), to_bytes("?"), deadline);
  std::vector<int> written;
  bool is_late = false;
  for (const int rank : listening) {
    const std::string key = written_key(number, rank);
    try {
      // The deadline is the same for all; records that exist still count.
      if (is_late && peek(store, key, kAnswers).empty()) continue;
      if (!is_late) store.get(key, deadline, cancellation);
      written.push_back(rank);
    } catch (const Timeout&) {
      is_late = true;
    }
  }
  return written;
}

}  // namespace lockstep
