#include "benchmarks/measure_collectives.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "benchmarks/requests.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) /
         static_cast<double>(values.size());
}

// What each of the `count` elements at `data` must be.
void expect(const float* data, std::size_t count, float value) {
  for (std::size_t i = 0; i < count; ++i) {
    if (data[i] == value) continue;
    throw std::runtime_error(
        "element " + std::to_string(i) + " of " + std::to_string(count) +
        " is " + std::to_string(data[i]) + ", not " + std::to_string(value));
  }
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

// One question, ready to be repeated.
struct Measured {
  std::function<void()> fill = [] {};
  std::function<void()> run;
  std::function<void()> verify = [] {};
};

struct Request {
  std::string collective;
  std::string memory;
  std::size_t bytes = 0;
  double seconds = 0;

  std::size_t count() const {
    return std::max<std::size_t>(1, bytes / sizeof(float));
  }
};

Request parse(const std::string& text) {
  Request request;
  std::istringstream words(text);
  words >> request.collective >> request.memory >> request.bytes >>
      request.seconds;
  if (!words) throw std::runtime_error("no question: \"" + text + "\"");
  return request;
}

// Rank r writes r + 1 into its buffer.
Measured prepare_in_place(Engine& engine, const Request& request,
                          const std::shared_ptr<float>& data) {
  const std::size_t n = request.count();
  const bool sum = request.collective == "all_reduce";
  const auto ranks = static_cast<float>(engine.size());
  const float result = sum ? ranks * (ranks + 1) / 2 : 1;
  const auto own = static_cast<float>(engine.rank() + 1);
  Measured measured;
  measured.fill = [=] { std::fill_n(data.get(), n, own); };
  measured.verify = [=] { expect(data.get(), n, result); };
  if (sum)
    measured.run = [=, &engine] { engine.all_reduce(data.get(), n); };
  else
    measured.run = [=, &engine] { engine.broadcast(data.get(), n); };
  return measured;
}

Measured prepare_all_gather(Engine& engine, const Request& request,
                            Engine::Memory memory) {
  const std::size_t n = request.count();
  const auto input = engine.allocate(n, memory);
  const auto output =
      engine.allocate(n * static_cast<std::size_t>(engine.size()), memory);
  const auto own = static_cast<float>(engine.rank() + 1);
  Measured measured;
  measured.fill = [=] { std::fill_n(input.get(), n, own); };
  measured.run = [=, &engine] {
    engine.all_gather(input.get(), output.get(), n);
  };
  measured.verify = [=, &engine] {
    for (int r = 0; r < engine.size(); ++r)
      expect(output.get() + static_cast<std::size_t>(r) * n, n,
             static_cast<float>(r + 1));
  };
  return measured;
}

// What the memory can do: every rank copies, by itself but at the same time.
Measured prepare_copy(const Request& request) {
  const std::size_t n = request.count();
  const auto from = allocate_plain(n), to = allocate_plain(n);
  std::fill_n(to.get(), n, 0.0F);
  Measured measured;
  measured.fill = [=] { std::fill_n(from.get(), n, 1.0F); };
  if (request.memory == "streaming")
    measured.run = [=] { copy_streaming(to.get(), from.get(), n); };
  else
    measured.run = [=] {
      std::memcpy(to.get(), from.get(), n * sizeof(float));
    };
  measured.verify = [=] { expect(to.get(), n / 4 * 4, 1); };
  return measured;
}

Measured prepare(Engine& engine, const Request& request) {
  const auto memory = request.memory == "shared" ? Engine::Memory::kShared
                                                 : Engine::Memory::kPlain;
  if (request.collective == "barrier") {
    Measured measured;
    measured.run = [&engine] { engine.barrier(); };
    return measured;
  }
  if (request.collective == "all_gather")
    return prepare_all_gather(engine, request, memory);
  if (request.collective == "copy") return prepare_copy(request);
  if (request.collective != "all_reduce" && request.collective != "broadcast")
    throw std::runtime_error("unknown collective " + request.collective);
  return prepare_in_place(engine, request,
                          engine.allocate(request.count(), memory));
}

double run_once(Engine& engine, const Measured& measured) {
  measured.fill();
  engine.barrier();
  const auto begin = Clock::now();
  measured.run();
  return seconds_since(begin);
}

// As many repetitions as fit into the time asked for, on every rank as many.
std::size_t choose_repetitions(Engine& engine, const Measured& measured,
                               double seconds) {
  run_once(engine, measured);
  measured.verify();
  run_once(engine, measured);
  engine.barrier();
  const auto begin = Clock::now();
  constexpr int kTrials = 3;
  for (int i = 0; i < kTrials; ++i) run_once(engine, measured);
  const auto took = engine.gather(seconds_since(begin) / kTrials);
  const double slowest = *std::max_element(took.begin(), took.end());
  return static_cast<std::size_t>(std::clamp(seconds / slowest, 5.0, 5000.0));
}

}  // namespace

std::shared_ptr<float> allocate_plain(std::size_t count) {
  constexpr std::size_t kLine = 64;
  const std::size_t bytes = (count * sizeof(float) + kLine - 1) / kLine * kLine;
  auto* data = static_cast<float*>(std::aligned_alloc(kLine, bytes));
  if (data == nullptr) throw std::bad_alloc();
  return {data, [](float* block) { std::free(block); }};
}

std::string measure_collective(Engine& engine, const std::string& text) {
  const Request request = parse(text);
  const Measured measured = prepare(engine, request);
  std::vector<double> times(
      choose_repetitions(engine, measured, request.seconds));
  for (double& time : times) time = run_once(engine, measured);
  measured.verify();
  std::ostringstream answer;
  answer << R"({"median_us": )" << mean(engine.gather(median(times))) * 1e6
         << R"(, "mean_us": )" << mean(engine.gather(mean(times))) * 1e6
         << R"(, "repetitions": )" << times.size() << "}";
  return answer.str();
}

void answer_requests(Engine& engine, const std::string& prefix) {
  Requests requests(prefix, engine.rank());
  while (const auto request = requests.next()) {
    const std::string answer = measure_collective(engine, *request);
    if (engine.rank() == 0) std::cout << answer << std::endl;
  }
}

}  // namespace lockstep
