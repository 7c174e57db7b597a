#include "benchmarks/collective_answers.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "apps/bench/bench_measure.h"
#include "benchmarks/requests.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace lockstep {
namespace {

struct Question {
  std::string collective;
  std::string memory;
  std::size_t bytes = 0;
  RoundOptions rounds;
};

Question parse(const std::string& text) {
  Question question;
  std::istringstream words(text);
  double seconds = 0;
  words >> question.collective >> question.memory >> question.bytes >>
      seconds >> question.rounds.least_rounds;
  if (!words) throw std::runtime_error("no question: \"" + text + "\"");
  question.rounds.budget = std::chrono::duration<double>(seconds);
  return question;
}

// Copies past the cache, which saves reading what will be overwritten: the most
// that one core can copy once the buffers are larger than its cache.
void copy_streaming(float* to, const float* from, std::size_t count) {
#ifdef __SSE2__
  for (std::size_t i = 0; i + 4 <= count; i += 4)
    _mm_stream_ps(to + i, _mm_load_ps(from + i));
  _mm_sfence();
#else
  std::memcpy(to, from, count * sizeof(float));
#endif
}

// What the memory can do: every rank copies, by itself but at the same time.
Timings measure_copy(Engine& engine, const Question& question) {
  const std::size_t count = question.bytes / sizeof(float);
  const auto from_memory = allocate_plain(question.bytes);
  const auto to_memory = allocate_plain(question.bytes);
  auto* const from = reinterpret_cast<float*>(from_memory.get());
  auto* const to = reinterpret_cast<float*>(to_memory.get());
  std::fill_n(to, count, 0.0F);
  Round round;
  round.prepare = [=](std::uint64_t number) {
    std::fill_n(from, count, static_cast<float>(number % 1000));
  };
  round.run = [&, streaming = question.memory == "streaming"] {
    if (streaming)
      copy_streaming(to, from, count);
    else
      std::memcpy(to, from, question.bytes);
  };
  round.verify = [=](std::uint64_t) {
    if (std::memcmp(to, from, count / 4 * 4 * sizeof(float)) != 0)
      throw std::runtime_error("the copy differs");
  };
  return time_rounds(engine, round, question.rounds);
}

Timings measure(Engine& engine, const Question& question) {
  if (question.collective == "copy") return measure_copy(engine, question);
  const auto collective = find_collective(question.collective);
  if (!collective)
    throw std::runtime_error("unknown collective " + question.collective);
  CollectiveCase wanted{.collective = *collective};
  wanted.bytes = question.bytes;
  wanted.memory = question.memory == "shared" ? Engine::Memory::kShared
                                              : Engine::Memory::kPlain;
  return measure_collective(engine, wanted, question.rounds);
}

std::string to_json(const Timings& timings) {
  const auto microseconds = [](std::chrono::duration<double> time) {
    return std::chrono::duration<double, std::micro>(time).count();
  };
  std::ostringstream answer;
  answer << R"({"median_us": )" << microseconds(timings.p50)
         << R"(, "mean_us": )" << microseconds(timings.mean)
         << R"(, "rounds": )" << timings.rounds << R"(, "all_rounds": )"
         << timings.all_rounds << "}";
  return answer.str();
}

}  // namespace

void answer_requests(Engine& engine, const std::string& prefix) {
  answer_requests(prefix, engine.rank(), [&](const std::string& request) {
    return to_json(measure(engine, parse(request)));
  });
}

}  // namespace lockstep
