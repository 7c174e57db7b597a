// Times collectives and verifies their results, for `lockstep bench` and for
// the comparisons in benchmarks/.
//
// Before each round every rank rewrites its buffers, as a training step does,
// and a barrier lets all ranks start together. A rank's time for a round runs
// from the barrier until its own part is done. The figures are computed per
// rank over its rounds and averaged over the ranks. The first and the last
// round's results are verified; every round's values differ.
//
// An engine may make several calls in a row in a round; the time is then
// divided by their number. On a GPU a call of a few bytes ends before the host
// notices, so a single call would measure the host. In-place reductions then
// leave no valid result, so one more round of a single call is verified.
//
// Threads: one thread at a time; every rank makes the same calls.
// Errors:  InternalError for a wrong result, and those of the engine.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "apps/bench/bench_engine.h"

namespace lockstep {

struct RoundOptions {
  // The number of rounds; nothing: as many as fit into `budget`.
  std::optional<int> rounds{};
  int least_rounds = 10;
  std::chrono::duration<double> budget = std::chrono::milliseconds(200);
};

struct Timings {
  // Per rank over its rounds, averaged over the ranks. With fewer than 100
  // rounds p99 is the slowest round.
  std::chrono::duration<double> p50{};
  std::chrono::duration<double> p99{};
  std::chrono::duration<double> mean{};
  int rounds = 0;
  int calls = 1;  // per round
  // Including the untimed rounds before and after.
  int all_rounds = 0;
};

// One round. Only `run` is timed; `prepare` and `verify` receive the round's
// number.
struct Round {
  std::function<void(std::uint64_t)> prepare = [](std::uint64_t) {};
  std::function<void()> run;
  std::function<void(std::uint64_t)> verify = [](std::uint64_t) {};
  // The timed form of `run` when it makes several calls; returns their number.
  std::function<int()> run_timed{};
};

Timings time_rounds(Engine& engine, const Round& round,
                    const RoundOptions& options);

struct CollectiveCase {
  BenchCollective collective = BenchCollective::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Engine::Memory memory = Engine::Memory::kShared;
  // The size of a rank's longer buffer; rounded to whole elements and blocks,
  // at least one element per block.
  std::size_t bytes = 0;
};

// The elements per block and the measured bytes for the requested
// `wanted.bytes`.
std::size_t elements_of_block(const CollectiveCase& wanted, int size);
std::size_t rounded_bytes(const CollectiveCase& wanted, int size);

// The bytes of all buffers of all `size` ranks.
std::size_t bytes_of_all_buffers(const CollectiveCase& wanted, int size);

Timings measure_collective(Engine& engine, const CollectiveCase& wanted,
                           const RoundOptions& options);

// Bytes per second, as nccl-tests define them.
struct Bandwidth {
  // The row's bytes over its time: the caller's view.
  double algorithm = 0;
  // The least traffic that any algorithm sends over a rank's link in each
  // direction, over the row's time. Compare it with the hardware's bandwidth.
  double bus = 0;
};
Bandwidth bandwidth(BenchCollective collective, int size, std::size_t bytes,
                    std::chrono::duration<double> time);

}  // namespace lockstep
