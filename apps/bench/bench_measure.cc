#include "apps/bench/bench_measure.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "apps/bench/bench_pattern.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kMostRounds = 5000;

// Verified but not timed.
void run_once(Engine& engine, const Round& round, std::uint64_t number) {
  round.prepare(number);
  engine.barrier();
  round.run();
  round.verify(number);
}

struct TimedRound {
  Seconds time{};  // per call
  int calls = 1;
};

TimedRound run_timed(Engine& engine, const Round& round, std::uint64_t number) {
  round.prepare(number);
  engine.barrier();
  int calls = 1;
  const auto begin = Clock::now();
  if (round.run_timed)
    calls = round.run_timed();
  else
    round.run();
  return {Seconds(Clock::now() - begin) / calls, calls};
}

// The number of rounds that fit into the requested time; the same on every
// rank. `number` is that of the next round.
int choose_rounds(Engine& engine, const Round& round,
                  const RoundOptions& options, std::uint64_t& number) {
  if (options.rounds) return *options.rounds;
  engine.barrier();
  const auto begin = Clock::now();
  constexpr int kTrials = 3;
  for (int i = 0; i < kTrials; ++i) run_timed(engine, round, number++);
  const Seconds took = (Clock::now() - begin) / kTrials;
  const auto all = engine.gather(took.count());
  const double slowest = *std::max_element(all.begin(), all.end());
  const double fit = options.budget.count() / std::max(slowest, 1e-9);
  return static_cast<int>(
      std::clamp<double>(fit, options.least_rounds, kMostRounds));
}

// The smallest of the sorted `times` that at least a `share` of them do not
// exceed.
Seconds percentile(const std::vector<Seconds>& times, double share) {
  const double position = std::ceil(share * static_cast<double>(times.size()));
  return times.at(static_cast<std::size_t>(std::max(position, 1.0)) - 1);
}

Seconds average_over_ranks(Engine& engine, Seconds own) {
  const auto all = engine.gather(own.count());
  return Seconds(std::accumulate(all.begin(), all.end(), 0.0) /
                 static_cast<double>(all.size()));
}

Timings summarise(Engine& engine, std::vector<Seconds> times) {
  std::sort(times.begin(), times.end());
  const Seconds mean = std::accumulate(times.begin(), times.end(), Seconds(0)) /
                       static_cast<double>(times.size());
  constexpr double kHalf = 0.5;
  constexpr double kNearlyAll = 0.99;
  return {.p50 = average_over_ranks(engine, percentile(times, kHalf)),
          .p99 = average_over_ranks(engine, percentile(times, kNearlyAll)),
          .mean = average_over_ranks(engine, mean),
          .rounds = static_cast<int>(times.size())};
}

// One rank's buffers for a collective, and their contents.
class RankBuffers {
 public:
  RankBuffers(Engine& engine, const CollectiveCase& wanted)
      : engine_(engine),
        wanted_(wanted),
        kind_{.type = wanted.type,
              .op = reduces(wanted.collective) ? wanted.op : ReduceOp::kSum},
        count_(elements_of_block(wanted, engine.size())),
        block_bytes_(count_ * size_of(wanted.type)),
        blocks_(block_counts(wanted.collective, engine.rank(), engine.size())),
        input_(allocate(blocks_.in)),
        output_(allocate(blocks_.out)) {}

  void write(std::uint64_t round) const {
    const bool in_place = is_in_place(wanted_.collective);
    const int blocks = in_place ? blocks_.out : blocks_.in;
    std::byte* const data = in_place ? output_.get() : input_.get();
    for (int b = 0; b < blocks; ++b)
      engine_.write(block(data, b), block_bytes_, [&](std::byte* memory) {
        write_block(memory, count_, kind_, {.rank = engine_.rank(), .block = b},
                    round);
      });
  }

  CollectiveCall call() const {
    return {.collective = wanted_.collective,
            .input = input_.get(),
            .output = output_.get(),
            .count = count_,
            .type = kind_.type,
            .op = kind_.op};
  }

  void check(std::uint64_t round) const {
    const auto expected =
        expected_blocks(wanted_.collective, engine_.rank(), engine_.size());
    for (std::size_t b = 0; b < expected.size(); ++b)
      engine_.read(block(output_.get(), static_cast<int>(b)), block_bytes_,
                   [&](const std::byte* memory) {
                     check_block(memory, count_, kind_, expected[b], round);
                   });
  }

 private:
  std::shared_ptr<std::byte> allocate(int blocks) const {
    if (blocks == 0) return nullptr;
    return engine_.allocate(static_cast<std::size_t>(blocks) * block_bytes_,
                            wanted_.memory);
  }
  std::byte* block(std::byte* data, int b) const {
    return data + static_cast<std::size_t>(b) * block_bytes_;
  }

  Engine& engine_;
  const CollectiveCase wanted_;
  const ElementKind kind_;
  const std::size_t count_;
  const std::size_t block_bytes_;
  const BlockCounts blocks_;
  const std::shared_ptr<std::byte> input_;
  const std::shared_ptr<std::byte> output_;
};

}  // namespace

Timings time_rounds(Engine& engine, const Round& round,
                    const RoundOptions& options) {
  std::uint64_t number = 0;
  run_once(engine, round, number++);
  const int calls = run_timed(engine, round, number++).calls;
  std::vector<Seconds> times(
      static_cast<std::size_t>(choose_rounds(engine, round, options, number)));
  for (Seconds& time : times) time = run_timed(engine, round, number++).time;
  if (calls > 1)
    run_once(engine, round, number++);
  else
    round.verify(number - 1);
  Timings timings = summarise(engine, std::move(times));
  timings.calls = calls;
  timings.all_rounds = static_cast<int>(number);
  return timings;
}

std::size_t elements_of_block(const CollectiveCase& wanted, int size) {
  const auto blocks = static_cast<std::size_t>(
      std::max(1, blocks_of_row(wanted.collective, size)));
  return std::max<std::size_t>(1,
                               wanted.bytes / (blocks * size_of(wanted.type)));
}

std::size_t rounded_bytes(const CollectiveCase& wanted, int size) {
  return elements_of_block(wanted, size) * size_of(wanted.type) *
         static_cast<std::size_t>(blocks_of_row(wanted.collective, size));
}

std::size_t bytes_of_all_buffers(const CollectiveCase& wanted, int size) {
  std::size_t blocks = 0;
  for (int r = 0; r < size; ++r) {
    const BlockCounts own = block_counts(wanted.collective, r, size);
    blocks += static_cast<std::size_t>(own.in + own.out);
  }
  return blocks * elements_of_block(wanted, size) * size_of(wanted.type);
}

Timings measure_collective(Engine& engine, const CollectiveCase& wanted,
                           const RoundOptions& options) {
  const RankBuffers buffers(engine, wanted);
  const CollectiveCall call = buffers.call();
  const Round round{
      .prepare = [&](std::uint64_t number) { buffers.write(number); },
      .run = [&] { engine.run(call); },
      .verify = [&](std::uint64_t number) { buffers.check(number); },
      .run_timed = [&] { return engine.run_timed(call); }};
  return time_rounds(engine, round, options);
}

// Source: the factors of nccl-tests: doc/PERFORMANCE.md for all but gather,
// scatter and send_recv, whose source files have them (src/gather.cu, …).
Bandwidth bandwidth(BenchCollective collective, int size, std::size_t bytes,
                    std::chrono::duration<double> time) {
  const double algorithm = static_cast<double>(bytes) / time.count();
  const double others = static_cast<double>(size - 1) / size;
  switch (collective) {
    case BenchCollective::kBarrier:
      return {};
    case BenchCollective::kAllReduce:
      return {algorithm, algorithm * 2 * others};
    case BenchCollective::kAllGather:
    case BenchCollective::kReduceScatter:
    case BenchCollective::kAllToAll:
    case BenchCollective::kGather:
    case BenchCollective::kScatter:
      return {algorithm, algorithm * others};
    case BenchCollective::kBroadcast:
    case BenchCollective::kReduce:
    case BenchCollective::kSendRecv:
      return {algorithm, algorithm};
  }
  return {};
}

}  // namespace lockstep
