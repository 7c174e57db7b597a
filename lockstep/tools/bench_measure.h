// How a collective is timed and its result verified: the one place that knows,
// for `lockstep bench` and for the comparisons in benchmarks/.
//
// Before each round every rank writes its buffers anew, as a training step
// does, and a barrier lets all begin together; a round's time is that of each
// rank from there until its own part is done. The figures are those of each
// rank over its rounds, averaged over the ranks. Results are verified after the
// first and the last round, and each round's differ.
//
// An engine may make several calls in a row in a round, whose time is then
// divided by their number: on a GPU one call of a few bytes is over before the
// host knows, and it would be the host that is measured. As what reductions in
// place leave then is no result, one more round, of one call, is verified.
//
// Threads: one at a time; every rank calls the same.
// Errors:  InternalError for a wrong result, and what the engine throws.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "lockstep/tools/bench_engine.h"

namespace lockstep {

struct RoundOptions {
  // How many rounds; nothing: as many as fit into `budget`.
  std::optional<int> rounds{};
  int least_rounds = 10;
  std::chrono::duration<double> budget = std::chrono::milliseconds(200);
};

struct Timings {
  // Of all that ranks measured, averaged over the ranks. With fewer than 100
  // rounds p99 is the worst of them.
  std::chrono::duration<double> p50{};
  std::chrono::duration<double> p99{};
  std::chrono::duration<double> mean{};
  int rounds = 0;
  int calls = 1;  // of a round
  // With those before and after, which were not timed.
  int all_rounds = 0;
};

// What is timed. `prepare` and `verify` get the round's number and are not.
struct Round {
  std::function<void(std::uint64_t)> prepare = [](std::uint64_t) {};
  std::function<void()> run;
  std::function<void(std::uint64_t)> verify = [](std::uint64_t) {};
  // `run` as it is timed, where that is not once: returns how often it was.
  std::function<int()> run_timed{};
};

Timings time_rounds(Engine& engine, const Round& round,
                    const RoundOptions& options);

struct CollectiveCase {
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Engine::Memory memory = Engine::Memory::kShared;
  // Of the longer buffer of a rank; rounded to whole elements and blocks, one
  // element a block at least.
  std::size_t bytes = 0;
};

// The elements of a block, and the bytes that are measured, where
// `wanted.bytes` are asked for.
std::size_t elements_of_block(const CollectiveCase& wanted, int size);
std::size_t rounded_bytes(const CollectiveCase& wanted, int size);

// What the buffers of all of `size` ranks take for it.
std::size_t bytes_of_all_buffers(const CollectiveCase& wanted, int size);

Timings measure_collective(Engine& engine, const CollectiveCase& wanted,
                           const RoundOptions& options);

// Bytes a second, as nccl-tests define them.
struct Bandwidth {
  // Bytes of the row over its time: what a caller sees.
  double algorithm = 0;
  // What passes through a rank's link in each direction where every rank has
  // one and no algorithm could pass less: to be held against the hardware.
  double bus = 0;
};
Bandwidth bandwidth(Collective collective, int size, std::size_t bytes,
                    std::chrono::duration<double> time);

}  // namespace lockstep
